"""Pure reading: the engine and its recent past, as rows, pages and changes for clients."""
