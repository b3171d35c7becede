"""The nouns of grn as frozen values; nothing here touches the machine."""
