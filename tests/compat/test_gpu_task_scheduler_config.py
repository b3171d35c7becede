"""`ConfigManager` and the names of instances: values in, values out."""

from __future__ import annotations

import copy
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

from gpu_task_scheduler.config_manager import ConfigManager
from grn.compat.tasks.config import DEFAULTS, Folders, signature

EXAMPLE: dict[str, Any] = {
    "scheduler_config": {"gpu": ["0", "1", "2"]},
    "global_config": {"num_run": 5, "num_epoch": 200},
    "test_config": [
        {"method": ["GAN", "ALI"], "num_packing": [1], "num_zmode": [1]},
        {"method": ["WGAN"], "num_packing": [3], "num_zmode": [1, 2]},
    ],
}


def manager(*test: dict[Any, Any], common: Any = None, **settings: Any) -> ConfigManager:
    config: dict[str, Any] = {"scheduler_config": {"gpu": ["0"], **settings}}
    if test:
        config["test_config"] = list(test)
    if common is not None:
        config["global_config"] = common
    return ConfigManager(config)


def all_of(manager: ConfigManager) -> list[dict[str, Any]]:
    found = []
    while (one := manager.get_next_config())["config"] is not None:
        found.append(one)
    return found


def folders_of(manager: ConfigManager) -> list[str]:
    return [one["work_dir"] for one in all_of(manager)]


# --- instances -----------------------------------------------------------------------------


def test_the_example_has_four_instances_in_this_order() -> None:
    found = ConfigManager(EXAMPLE)

    assert found.get_num_left_config() == 4
    assert found.get_next_config() == {
        "config": {
            "num_run": 5,
            "num_epoch": 200,
            "method": "GAN",
            "num_packing": 1,
            "num_zmode": 1,
        },
        "test_config_string": "method-GAN,num_packing-1,num_zmode-1,",
        "test_config_string_filtered": "method-GAN,num_packing-1,num_zmode-1,",
        "work_dir": "results/method-GAN,num_packing-1,num_zmode-1,",
    }
    assert found.get_num_left_config() == 3
    assert [one["test_config_string"] for one in all_of(found)] == [
        "method-ALI,num_packing-1,num_zmode-1,",
        "method-WGAN,num_packing-3,num_zmode-1,",
        "method-WGAN,num_packing-3,num_zmode-2,",
    ]
    assert found.get_num_left_config() == 0
    assert found.get_next_config() == {"config": None}


def test_the_last_key_is_the_fastest_and_dictionaries_follow_each_other() -> None:
    found = manager({"b": [1, 2], "a": "xy"}, {"c": [0]})

    assert [one["config"] for one in all_of(found)] == [
        {"b": 1, "a": "x"},
        {"b": 1, "a": "y"},
        {"b": 2, "a": "x"},
        {"b": 2, "a": "y"},
        {"c": 0},
    ]


def test_values_may_be_any_iterable() -> None:
    found = manager({"a": range(2), "b": (x for x in "pq"), "c": {7: None}, "d": ("t",)})

    assert found.get_num_left_config() == 4
    assert (
        found.get_all_test_config_in_string() == "a-range(0, 2),b-['p', 'q'],c-{7: None},d-('t',),+"
    )
    assert [one["config"]["b"] for one in all_of(found)] == ["p", "q", "p", "q"]


def test_a_test_value_wins_over_a_global_one_and_instances_share_no_lists() -> None:
    found = manager({"lr": [1, 2]}, common={"lr": 0, "layers": [3]})
    first, second = (one["config"] for one in all_of(found))

    assert (first, second) == ({"lr": 1, "layers": [3]}, {"lr": 2, "layers": [3]})
    first["layers"].append(4)
    assert second["layers"] == [3]


def test_a_global_value_that_cannot_be_copied_is_shared() -> None:
    lock = threading.Lock()

    assert manager(common={"lock": lock}).get_next_config()["config"]["lock"] is lock


def test_without_test_config_there_is_one_instance() -> None:
    found = manager(common={"a": 1})

    assert found.get_all_test_config() == [{}]
    assert all_of(found) == [
        {
            "config": {"a": 1},
            "test_config_string": "",
            "test_config_string_filtered": "",
            "work_dir": "results/",
        }
    ]


def test_a_large_grid_costs_nothing_before_it_is_used() -> None:
    found = manager({key: range(100) for key in "abcdef"})

    assert found.get_num_left_config() == 100**6
    assert found.get_next_config()["config"]["f"] == 0


def test_all_is_told_as_it_was_written() -> None:
    found = ConfigManager(EXAMPLE)

    assert found.get_all_global_config() == {"num_run": 5, "num_epoch": 200}
    assert found.get_all_test_config() == [
        {"method": "GAN", "num_packing": 1, "num_zmode": 1},
        {"method": "ALI", "num_packing": 1, "num_zmode": 1},
        {"method": "WGAN", "num_packing": 3, "num_zmode": 1},
        {"method": "WGAN", "num_packing": 3, "num_zmode": 2},
    ]
    assert found.get_all_test_config_in_string() == (
        "method-['GAN', 'ALI'],num_packing-[1],num_zmode-[1],+"
        "method-['WGAN'],num_packing-[3],num_zmode-[1, 2],+"
    )
    assert found.get_all_scheduler_config() == {**DEFAULTS, "gpu": ["0", "1", "2"]}


def test_the_users_dictionary_is_left_as_it_is() -> None:
    config = {**copy.deepcopy(EXAMPLE), "scheduler_config": {"gpu": [["0", "1"], "2"]}}
    before = copy.deepcopy(config)
    all_of(ConfigManager(config))

    assert config == before


def test_the_defaults_are_those_of_the_older_tool() -> None:
    assert manager().get_all_scheduler_config() == {
        "gpu": ["0"],
        "result_root_folder": "results/",
        "force_rerun": False,
        "test_config_string_indicator": "-",
        "test_config_string_separator": ",",
        "test_config_string_inst_separator": "+",
        "temp_folder": "temp/",
        "log_file": "worker.log",
        "scheduler_log_file_path": "scheduler.log",
        "config_string_value_maxlen": 30,
        "ignored_keys_for_folder_name": [],
        "ignored_characters_for_folder_name": [" ", "[", "]"],
    }


# --- slots ---------------------------------------------------------------------------------


def test_slots_are_gpus_or_lists_of_them() -> None:
    found = manager(gpu=["0", ["0", "1"], "0"])

    assert found.get_num_gpu() == 3
    assert found.get_gpu_envs() == [
        {"name": "gpu0", "env": {"CUDA_VISIBLE_DEVICES": "0"}},
        {"name": "gpu0,1", "env": {"CUDA_VISIBLE_DEVICES": "0,1"}},
        {"name": "gpu0", "env": {"CUDA_VISIBLE_DEVICES": "0"}},
    ]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "could not find scheduler_config in config"),
        ({"scheduler_config": {}}, "could not find gpu in scheduler_config"),
        (
            {"scheduler_config": {"gpu": []}},
            "please specify at least one gpu in scheduler_config",
        ),
        *(
            ({"scheduler_config": {"gpu": gpu}}, "gpu can only be a string or a list of strings")
            for gpu in ([0], [["0", 1]], [("0", "1")], [None], [[]], "0", 0, None, {"0": 1})
        ),
    ],
)
def test_wrong_gpus_are_refused_in_the_older_words(config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        ConfigManager(config)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ([], "config must be a dictionary"),
        ({"scheduler_config": ["0"]}, "scheduler_config must be a dictionary"),
        ({"global_config": [1]}, "global_config must be a dictionary"),
        ({"test_config": {"a": [1]}}, "test_config must be a list of dictionaries"),
        ({"test_config": None}, "test_config must be a list of dictionaries"),
        ({"test_config": ["a"]}, r"test_config\[0\] must be a dictionary, not 'a'"),
        ({"test_config": [{"a": 1}]}, r"test_config\[0\]\['a'\] must be a list .* write \[1\]"),
        ({"test_config": [{"a": itertools.count()}]}, "never ends"),
        ({"test_config": [{"a": itertools.repeat(1)}]}, "never ends"),
        ({"log_file": 3}, "log_file must be a string, not 3"),
        ({"result_root_folder": None}, "result_root_folder must be a string"),
        ({"config_string_value_maxlen": "30"}, "must be a whole number, not '30'"),
        ({"ignored_keys_for_folder_name": 3}, "must be a list of strings"),
        ({"ignored_characters_for_folder_name": [1]}, "must be a list of strings"),
    ],
)
def test_a_wrong_shape_is_one_clear_error(change: Any, words: str) -> None:
    config: Any = change
    if isinstance(change, dict):
        settings = {key: value for key, value in change.items() if key in DEFAULTS}
        others = {key: value for key, value in change.items() if key not in DEFAULTS}
        config = {"scheduler_config": {"gpu": ["0"], **settings}, **others}

    with pytest.raises(ValueError, match=words):
        ConfigManager(config)


def test_a_repetition_that_ends_is_a_list() -> None:
    assert manager({"a": itertools.repeat(1, 2)}).get_num_left_config() == 2


def test_what_was_probably_not_meant_is_remarked() -> None:
    found = manager({"method": "GAN"}, {"lr": []}, forcererun=True)

    assert found.remarks() == [
        "scheduler_config has no setting 'forcererun': it is ignored",
        "test_config[0]['method'] is a string, so each of its letters is one value",
        "test_config[1]['lr'] is empty, so nothing of test_config[1] is run",
    ]
    assert ConfigManager(EXAMPLE).remarks() == []


# --- names ---------------------------------------------------------------------------------


def test_a_name_has_its_keys_in_order_and_its_values_cut_and_cleaned() -> None:
    found = manager({"b": ["x" * 40], "a": [[1, 2]]})

    (one,) = all_of(found)
    assert one["work_dir"] == f"results/a-1,2,b-{'x' * 30},"


def test_a_value_is_cut_before_characters_are_taken_out() -> None:
    found = manager({"a": [[1, 2, 3]]}, config_string_value_maxlen=5)

    assert folders_of(found) == ["results/a-1,2,"]  # [1, 2


def test_how_names_are_made_can_be_set() -> None:
    found = manager(
        {"a": ["x y"], "b": [1], "c": [2]},
        test_config_string_indicator="=",
        test_config_string_separator=";",
        test_config_string_inst_separator="|",
        ignored_keys_for_folder_name=["b"],
        ignored_characters_for_folder_name=["y"],
        result_root_folder=Path("out"),
    )

    (one,) = all_of(found)
    assert one["test_config_string"] == "a=x ;b=1;c=2;"
    assert one["test_config_string_filtered"] == "a=x ;c=2;"
    assert one["work_dir"] == "out/a=x ;c=2;"
    assert found.get_all_test_config_in_string() == "a=['x y'];b=[1];c=[2];|"


def test_instances_that_would_share_a_folder_get_one_each() -> None:
    found = manager({"path": [f"/data/{'long/' * 6}{end}" for end in "abc"]})
    first, second, third = folders_of(found)

    assert [second, third] == [f"{first}~2", f"{first}~3"]


def test_ignored_keys_do_not_make_instances_share_a_folder() -> None:
    found = manager({"lr": [1], "seed": [1, 2]}, ignored_keys_for_folder_name=["seed"])

    assert folders_of(found) == ["results/lr-1,", "results/lr-1,~2"]


def test_a_number_never_meets_another_name() -> None:
    folders = Folders()

    assert folders.folder_of("a~2", {"x": 0}) == "a~2"
    assert folders.folder_of("a", {"x": 1}) == "a"
    assert folders.folder_of("a", {"x": 2}) == "a~3"


def test_the_same_instance_twice_has_one_folder() -> None:
    assert folders_of(manager({"a": [1, 1]}, {"a": [1]})) == ["results/a-1,"] * 3


def test_a_name_holds_no_address_since_the_next_process_has_others() -> None:
    values = [lambda x: x, lambda x: -x, threading.Thread, len]
    found = folders_of(manager({"f": values}, config_string_value_maxlen=200))

    assert found[0].endswith("<locals>.<lambda>>,")
    assert found[1:] == [
        f"{found[0]}~2",
        "results/f-<class'threading.Thread'>,",
        "results/f-<built-infunctionlen>,",
    ]


def test_keys_that_cannot_be_compared_are_ordered_all_the_same() -> None:
    assert folders_of(manager({2: ["b"], "a": ["c"]})) == ["results/2-b,a-c,"]


def test_an_instance_is_known_by_its_plain_values_and_others_by_their_name() -> None:
    one = {"a": [1, {"b": (2.5, None)}], "s": {"y", "x"}, "f": len, "o": threading.Lock()}

    assert signature(one) == {
        "a": "list(1, {'b': tuple(2.5, None)})",
        "f": "<builtins.len>",
        "o": "<_thread.lock>",
        "s": "{'x', 'y'}",
    }
    assert signature({"a": True}) != signature({"a": 1})


def test_a_value_that_holds_itself_has_a_name() -> None:
    value: list[Any] = []
    value.append(value)

    assert folders_of(manager({"a": [value]})) == ["results/a-...,"]
