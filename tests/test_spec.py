"""Experiments and run specs: strict reading, expansion, identity."""

import dataclasses
import hashlib
import json

import pytest
import yaml
from cells import PROFILE, ROOT, SETTINGS, make_spec

from cleanba.config import CONFIGS
from runners.declarations import load_mapping
from runners.spec import RunSpec, load_experiment

EXPERIMENT = {
    "name": "trial",
    "env_ids": ["Breakout-v5", "Pong-v5"],
    "seeds": [1, 2],
    "profiles": ["one"],
    "total_env_steps": 40_000,
    "algorithms": {"impala": {"algo": "impala", "num_envs": 32}, "ppo": {"algo": "ppo", "num_envs": 16}},
}


@pytest.fixture
def load(tmp_path):
    """Write profile and experiment, then load."""
    (tmp_path / "profiles").mkdir()
    write_profile(tmp_path, "one")

    def write_and_load(declared):
        path = tmp_path / "trial.yaml"
        path.write_text(declared if isinstance(declared, str) else yaml.safe_dump(declared, sort_keys=False))
        return load_experiment(path)

    return write_and_load


def write_profile(folder, name, **changes):
    stated = {"name": name, "platform": "cpu", "layout": "a0-l0-d1", "cpus": 2, "memory_gib": 1} | changes
    (folder / "profiles" / f"{name}.yaml").write_text(yaml.safe_dump(stated))


def test_the_matrix_is_expanded_in_order(load):
    cells = load(EXPERIMENT).cells
    assert [(c.algorithm, c.env_id, c.seed) for c in cells] == [
        ("impala", "Breakout-v5", 1), ("impala", "Breakout-v5", 2), ("impala", "Pong-v5", 1), ("impala", "Pong-v5", 2),
        ("ppo", "Breakout-v5", 1), ("ppo", "Breakout-v5", 2), ("ppo", "Pong-v5", 1), ("ppo", "Pong-v5", 2),
    ]  # fmt: skip
    assert len({c.run_id for c in cells}) == 8
    assert cells[0].name == "impala-Breakout-v5-a0-l0-d1-one-s1"
    assert cells[0].settings["num_envs"] == 32
    assert cells[0].derived == cells[0].config().derived()
    assert cells[0].planned_env_steps == 40_000 // (32 * 20) * 32 * 20


def test_a_spec_states_every_setting_of_its_config():
    for algo, config in CONFIGS.items():
        names = {field.name for field in dataclasses.fields(config)} - {"env_id", "seed"}
        assert set(make_spec(algo=algo).settings) == names


def test_run_id_is_a_function_of_the_meaning_alone():
    spec = make_spec()
    same = make_spec(experiment="other", algorithm="label", question="why?")
    assert same.run_id == spec.run_id
    others = [
        make_spec(seed=2),
        make_spec(env_id="Pong-v5"),
        make_spec(algo="ppo"),
        make_spec(settings=SETTINGS | {"gamma": 0.9}),
        make_spec(profile=dataclasses.replace(PROFILE, cpus=2)),
        make_spec(profile=dataclasses.replace(PROFILE, name="two")),
    ]
    assert len({spec.run_id, *(other.run_id for other in others)}) == 7


def test_run_id_is_the_hash_of_the_documented_json():
    spec = make_spec()
    meaning = {
        "schema": 1, "algo": "impala", "settings": spec.settings, "env_id": "CartPole-v1", "seed": 1,
        "profile": {
            "name": "one", "platform": "cpu", "layout": "a0-l0-d1", "cpus": 1, "memory_gib": 0.1, "device_kind": None,
            "threads_per_actor_device": 2, "envpool_threads": 1,
        },
    }  # fmt: skip
    text = json.dumps(meaning, sort_keys=True, separators=(",", ":"))
    assert spec.run_id == hashlib.sha256(text.encode()).hexdigest()[:12]


def test_a_setting_equal_to_its_default_is_the_same_run():
    assert make_spec(settings=SETTINGS | {"gamma": 0.99}).run_id == make_spec().run_id
    assert make_spec(settings=SETTINGS | {"max_grad_norm": 40}).run_id == make_spec().run_id


def test_json_round_trip_and_refusal_of_a_changed_spec():
    spec = make_spec()
    stored = json.loads(json.dumps(spec.to_json()))
    assert RunSpec.from_json(stored) == spec
    with pytest.raises(ValueError, match=f"run_id is {spec.run_id}, but what it states has the id"):
        RunSpec.from_json(stored | {"seed": 2})
    with pytest.raises(ValueError, match="schema is 2; allowed: 1"):
        RunSpec.from_json(stored | {"schema": 2})


BAD = [
    ({"sedes": [1]}, "unknown key 'sedes'; did you mean seeds"),
    ({"seeds": None}, "seeds is empty; allowed: a list of at least one whole number"),
    ({"seeds": [1, "2"]}, "seeds: an entry is '2', a text; allowed: whole number"),
    ({"seeds": [1, True]}, "seeds: an entry is True, a true or false; allowed: whole number"),
    ({"seeds": [1, 1]}, "seeds: 1 stands 2 times; state it once"),
    ({"seeds": [5000]}, "seed is 5000; allowed: a whole number from 0 to 1023"),
    ({"env_ids": "Pong-v5"}, "env_ids is 'Pong-v5', a text; allowed: a list"),
    ({"env_ids": ["Brekout-v5"]}, "unknown game 'Brekout-v5'; nearest: Breakout-v5"),
    ({"profiles": ["oen"]}, "no profile 'oen' in .*; allowed: one"),
    ({"name": "a/b"}, "name is 'a/b', a text; allowed: letters, digits"),
    ({"margin": "small"}, "margin is 'small', a text; allowed: number"),
    ({"margin": 0}, "margin is 0; allowed: a number above 0"),
    ({"margin": -0.1}, "margin is -0.1; allowed: a number above 0"),
    ({"margin": float("inf")}, "margin is inf; allowed: a finite number"),
    ({"margin": float("nan")}, "margin is nan; allowed: a finite number"),
    ({"algorithms": {"x": {"algo": "ppo", "gamma": float("nan")}}}, "algorithms: x: gamma is nan; allowed: a finite"),
    ({"algorithms": {}}, "algorithms is {}, a mapping; allowed: labels with their settings"),
    ({"algorithms": {"x": {"num_envs": 8}}}, "algorithms: x: key 'algo' is missing; allowed: impala, ppo"),
    ({"algorithms": {"x": {"algo": "a3c"}}}, "algorithms: x: algo is 'a3c'; allowed: impala, ppo"),
    ({"algorithms": {"x": {"algo": "ppo", "gama": 1}}}, "algorithms: x: .*unknown key 'gama'; did you mean gamma"),
    ({"algorithms": {"x": {"algo": "ppo", "gamma": "1"}}}, "algorithms: x: gamma is '1', a str; allowed: a float"),
    ({"algorithms": {"x": {"algo": "ppo", "total_env_steps": 9}}}, "total_env_steps stands here and for all"),
    ({"algorithms": {"x": {"algo": "ppo", "seed": 9}}}, "unknown key 'seed'"),
    ({"algorithms": {"x": {"algo": "ppo"}, "y": {"algo": "ppo"}}}, "are the same run; state it once"),
    ({"total_env_steps": 10}, "total_env_steps is 10; allowed: at least one update's"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_bad_declarations_are_refused_naming_the_file(load, changes, message):
    with pytest.raises(ValueError, match=message) as refusal:
        load(EXPERIMENT | changes)
    assert "trial.yaml: " in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_key_is_named(load):
    with pytest.raises(ValueError, match=r"trial.yaml: key 'seeds' is missing; needed: name, env_ids, seeds"):
        load({key: value for key, value in EXPERIMENT.items() if key != "seeds"})


def test_a_key_that_stands_twice_is_refused(load):
    with pytest.raises(ValueError, match=r"trial.yaml: line 2: key 'name' stands twice; state it once"):
        load("name: a\nname: b\n")


@pytest.mark.parametrize("key", ["{{name}: 1}", "{[a, b]: 1}", "{!!set {a}: 1}"])
def test_a_key_that_is_no_text_is_refused(load, key):
    with pytest.raises(ValueError, match=r"trial.yaml: line 2: a key is .*; allowed: text"):
        load(f"name: a\nalgorithms: {key}\n")


def test_yaml_that_is_none_is_refused(load):
    with pytest.raises(ValueError, match=r"trial.yaml: is not valid YAML \(.*line 1"):
        load("name: [1\n")
    with pytest.raises(ValueError, match=r"trial.yaml: holds 'quickstart', a text; allowed: a mapping"):
        load("quickstart\n")


def test_a_layout_that_shards_do_not_divide_over_is_refused(load, tmp_path):
    write_profile(tmp_path, "one", layout="a0-l1,2-d1")
    with pytest.raises(
        ValueError, match="profile one: layout: num_shards 1 does not divide over the 2 learner devices"
    ):
        load(EXPERIMENT)


def test_envs_that_fast_shards_do_not_divide_over_are_refused(load, tmp_path):
    """With `reduction: fast` the learner devices are the shards, whatever num_shards says."""
    write_profile(tmp_path, "one", layout="a0-l1,2,3-d1")
    with pytest.raises(ValueError, match="the 3 learner devices of a0-l1,2,3-d1: num_envs is 32; allowed: a multiple"):
        load(EXPERIMENT | {"algorithms": {"impala": {"algo": "impala", "num_envs": 32, "reduction": "fast"}}})


@pytest.mark.parametrize("text", ["6e-4", "6E-4", "6.0e-4", "0.0006"])
def test_numbers_with_an_exponent_are_numbers(tmp_path, text):
    (tmp_path / "x.yaml").write_text(f"rate: {text}\nbudget: 40_000\nname: a6e4\n")
    assert load_mapping(tmp_path / "x.yaml") == {"rate": 6e-4, "budget": 40_000, "name": "a6e4"}


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_experiment_of_the_repository_expands(path):
    experiment = load_experiment(path)
    assert experiment.name == path.stem
    assert experiment.question.endswith("?")
    assert experiment.cells


@pytest.mark.parametrize("name", ["aa_noise", "layouts", "learner_delay"])
def test_experiments_about_the_schedule_state_every_setting(name):
    declared = load_mapping(ROOT / "experiments" / f"{name}.yaml")
    for settings in declared["algorithms"].values():
        fields = {field.name for field in dataclasses.fields(CONFIGS[settings["algo"]])}
        assert set(settings) == fields - {"env_id", "seed", "total_env_steps"} | {"algo"}


def test_the_learner_delay_is_all_that_differs_within_a_schedule():
    cells = {cell.algorithm: cell for cell in load_experiment(ROOT / "experiments" / "learner_delay.yaml").cells}
    for schedule in ("sync", "cleanba", "async"):
        without, with_delay = cells[schedule].settings, cells[f"{schedule}-delayed"].settings
        assert without["schedule"] == with_delay["schedule"] == schedule
        assert {name: (value, with_delay[name]) for name, value in without.items() if value != with_delay[name]} == {
            "learner_delay_seconds": (0.0, 1.0)
        }


def test_the_papers_base_experiment_is_57_games_3_seeds_2_algorithms_and_states_every_setting():
    path = ROOT / "experiments" / "paper_10cpu.yaml"
    cells = load_experiment(path).cells
    assert len(cells) == 57 * 3 * 2
    assert {cell.profile.name for cell in cells} == {"gpu1-cpu10"}
    for settings in load_mapping(path)["algorithms"].values():
        fields = {field.name for field in dataclasses.fields(CONFIGS[settings["algo"]])}
        assert set(settings) == fields - {"env_id", "seed", "total_env_steps"} | {"algo"}
