import json

import pytest

from tests.cli.conftest import Cli
from tests.specification import spec

pytestmark = spec("13.errors")


def error_of(text: str) -> dict[str, object]:
    error: dict[str, object] = json.loads(text)["error"]
    return error


CASES = {
    "an unknown command names the nearest": ("jib list", 2, "did you mean `vctl job`?"),
    "an unknown subcommand names the nearest": ("job sbmit", 2, "did you mean `vctl job submit`?"),
    "a group needs a command": ("vc", 2, "one of: create"),
    "an unknown option names the nearest": ("job list --limt 3", 2, "did you mean --limit?"),
    "an unknown form names the nearest": ("job list -o jsn", 2, "did you mean json?"),
    "an unknown kind lists all": ("list things", 2, "possible: clusters"),
    "an object that is not there": ("job status nope", 4, "vctl job list"),
    "an unknown filter key": ("job list --filter statu=x", 2, "did you mean status?"),
    "a bad duration": ("prune --older-than soon", 2, "90s"),
    "a spec and a shortcut": ("job submit --virtual-cluster {} --num-cpus 1 -- true", 2, "into the spec"),
    "both kinds of a logical cluster": ("vc create x --spec {} --replica-sets {}", 2, "keep one"),
    "watching too often": ("job list --watch 0.001", 2, "0.1"),
    "a negative limit": ("job list --limit -1", 2, "0 or more"),
    "nothing to change": ("node update n", 2, "--resources"),
    "pairs where JSON is meant": ("vc create x --replica-sets 8c=1,4c=2", 2, """'{"8c": 1, "4c": 2}'"""),
    "a word where a number is meant": ("job list --limit x", 2, "write for example --limit 5"),
    "an argument too many": ("vc get a b", 2, "see `vctl vc get --help`"),
    "JSON without its option": (
        'vc create x {"a":1}',
        2,
        "JSON needs its option, for example `vctl vc create",
    ),
    "JSON without quotes": ("vc create x {a: 1}", 2, "put JSON in single quotes"),
    "an id with a slash": ("job status a/b", 4, "see `vctl job list -a`"),
    "a cluster of which the id is mistyped": ("vc get primry", 4, "did you mean primary?"),
    "amounts where a spec is meant": (
        'run --virtual-cluster {"cpu":4} -- true',
        2,
        '{"flexible_resource_min": {"CPU": 1}}',
    ),
    "amounts where a group is meant": (
        'run --virtual-cluster {"fixed_size_nodes":[{"nodes":[],"GPU":1}]} -- true',
        2,
        '{"nodes": [{"resources": {"GPU": 1}}]}',
    ),
    "amounts where a node is meant": (
        'run --virtual-cluster {"fixed_size_nodes":[{"nodes":[{"memory":1}]}]} -- true',
        2,
        '{"resources": {"memory": 1}}',
    ),
    "a cause of retries that is mistyped": ("run --retry-on NodeFail -- true", 2, "did you mean NodeFailed?"),
    "a time limit that is no time": ("job edit last --time-limit forever", 2, "none for no limit"),
    "a setting that is asked for": ("config get output", 2, "did you mean `vctl config show`?"),
    "a setting that is to be set": ("config set output json", 2, "did you mean `vctl config path`?"),
    "a repair by another name": ("doctor --fix", 2, "did you mean --repair?"),
    "what can never run": ("job submit --num-cpus 99 -- true", 3, "ask for less"),
}


EMPTY = {
    "job status": (4, "there is no job ''"),
    "job stop": (4, "there is no job ''"),
    "job logs": (4, "there is no job ''"),
    "why": (4, "there is no job ''"),
    "task status": (4, "there is no task ''"),
    "node drain": (4, "there is no node ''"),
    "vc get": (2, "Invalid request, the virtual cluster id is empty."),
    "vc stop": (2, "Invalid request, the virtual cluster id is empty."),
    "vc update --divisible": (2, "Invalid request, the virtual cluster id is empty."),
}


def test_why_of_an_unknown_task_speaks_of_a_task(nodes: Cli) -> None:
    ran = nodes("why", "task-7")
    assert (ran.code, ran.err.splitlines()[0]) == (4, "Error: there is no task 'task-7'")


@pytest.mark.parametrize(("command", "told"), EMPTY.items(), ids=list(EMPTY))
def test_an_empty_id_is_told_in_the_same_words_on_both_backends(
    nodes: Cli, command: str, told: tuple[int, str]
) -> None:
    """A variable of a script that is not set; spec 7 has the words for clusters."""
    ran = nodes(*command.split(), "")
    assert (ran.code, ran.out, ran.err.splitlines()[0]) == (told[0], "", f"Error: {told[1]}")


@pytest.mark.parametrize(("line", "code", "fix"), CASES.values(), ids=list(CASES))
def test_errors_name_problem_and_fix(nodes: Cli, line: str, code: int, fix: str) -> None:
    ran = nodes(line)
    assert ran.code == code, ran
    problem, hint = ran.err.splitlines()
    assert problem.startswith("Error: ")
    assert hint.startswith("Fix: ")
    assert fix in hint
    assert ran.out == ""


@pytest.mark.parametrize(("line", "code", "fix"), CASES.values(), ids=list(CASES))
def test_errors_in_json_are_on_stdout(
    nodes: Cli, monkeypatch: pytest.MonkeyPatch, line: str, code: int, fix: str
) -> None:
    monkeypatch.setenv("VCTL_OUTPUT", "json")
    if "-o" in line.split():
        return  # that one is about -o
    ran = nodes(line)
    error = error_of(ran.out)
    assert (ran.code, error["exit_code"]) == (code, code)
    assert set(error) == {"code", "exit_code", "message", "hint", "details"}
    assert fix in str(error["hint"])
    assert "Error" not in ran.err


def test_json_is_asked_for_by_the_option_too(cli: Cli) -> None:
    assert error_of(cli("job status nope -o json").out)["code"] == "NotFound"
    assert error_of(cli("job list --nope -o json").out)["code"] == "BadRequest"
    assert error_of(cli("jb --output=json").out)["code"] == "BadRequest"
    assert cli("job submit --nope -- true -o json").out == ""


def test_the_path_of_a_bad_field_is_in_the_details(nodes: Cli) -> None:
    spec = '{"fixed_size_nodes": [{"nodes": [{"resources": {"GPU": 1.5}}]}]}'
    ran = nodes("job", "submit", "-o", "json", "--virtual-cluster", spec, "--", "true")
    error = error_of(ran.out)
    assert ran.code == 2
    assert error["details"] == {"path": "fixed_size_nodes[0].nodes[0].resources.GPU"}


@pytest.mark.parametrize(
    "words", ["--ageing -1", "--half-life 0", "--weight x", "--max-running-jobs 0", "--min-runtime soon"]
)
def test_errors_about_a_queue_name_the_option(nodes: Cli, words: str) -> None:
    """As those of all options do; in a file and on HTTP its field is named."""
    for line in ("vc update primary", "vc create x --divisible"):
        ran = nodes(f"{line} {words}")
        assert (ran.code, ran.out) == (2, ""), ran.err
        assert ran.err.startswith(f"Error: {words.split(maxsplit=1)[0]}: ")


STATES = {
    "hold": ("job hold over", 5, "only a pending job can be put on hold", "`vctl job rerun over`"),
    "release": ("job release over", 5, "only a pending job can be released", "`vctl job rerun over`"),
    "an id that is taken": (
        "run -d --submission-id over -- true",
        5,
        "job over exists already",
        "another --submission-id,",
    ),
    "an id of an array": (
        "run -d --submission-id a --array 1-2 -- true",
        5,
        "exists already",
        "another --submission-id,",
    ),
    "edit": ("job edit over --priority 3", 5, "--priority=3 cannot be set", "`vctl job rerun over`"),
}


@pytest.mark.parametrize(("line", "code", "problem", "fix"), STATES.values(), ids=list(STATES))
def test_errors_are_about_the_job_that_was_named(
    nodes: Cli, monkeypatch: pytest.MonkeyPatch, line: str, code: int, problem: str, fix: str
) -> None:
    monkeypatch.setenv("VCTL_AUTOSTART", "0")
    assert nodes("run --no-wait --submission-id a --array 3-5 -- true").code == 0
    assert nodes("run --no-wait --submission-id over -- true").code == nodes("stop over").code == 0
    ran = nodes(line)
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert problem in ran.err
    assert fix in ran.err


@pytest.mark.on_the_machine  # the surprise is in this process
def test_surprises_are_one_line_unless_debugging(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def surprise(*_: object, **__: object) -> None:
        raise RuntimeError("boom\nsecond line")

    monkeypatch.setattr("vctl.ops.jobs.list_jobs", surprise)
    ran = cli("job list")
    assert ran.code == 1
    assert ran.err.splitlines()[0] == "Error: internal error: RuntimeError: boom"
    assert "Traceback" not in ran.err
    monkeypatch.setenv("VCTL_DEBUG", "1")
    with pytest.raises(RuntimeError):
        cli("job list")


@pytest.mark.on_the_machine  # so is the interrupt
def test_an_interrupt_is_130(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vctl.ops.jobs.list_jobs", interrupt)
    assert cli("job list").code == 130


def test_a_part_of_an_indivisible_cluster(nodes: Cli) -> None:
    """Whoever wrote --num-cpus is told what to write there instead of a word about a spec that was not given."""
    assert nodes("vc create shared --replica-sets {}").code == 0
    ran = nodes("job submit -c shared --num-cpus 1 -- true")
    assert ran.code == 2
    assert "--num-cpus" in ran.err.splitlines()[0]
    assert "--entrypoint-num-cpus" in ran.err.splitlines()[1]


IN_WORDS_OF_THE_COMMAND = {
    "run --num-cpus 1 --virtual-cluster {} -- true": "--num-cpus: cannot be combined with --virtual-cluster\n",
    "run --num-cpus 0 -- true": "Fix: --entrypoint-num-cpus 0 starts",
    "run --label -- true": "--label: only a job with --per-node has ranks\nFix: add --per-node, or leave --label out",
    "run --nodes 2 --per-node --entrypoint-num-cpus 1 -- true": "--per-node: each member gets",
    "task run --job j --output a/b -- true": '--output: "a/b" is not',
    "task run -- true": "Fix: name the job with --job=ID,",
    "job list --filter per_node=1": "--filter: unknown key 'per_node'\n",
    "node add --simulated --resources {} --count 0": "--count: 0 is out of range",
    "simulate --model lublin --limit-factor 0": "--limit-factor: 0 is not a factor",
    'run --virtual-cluster {"nodes":1} -- true': "Error: nodes: unknown field",
    'vc create x --spec {"parent":1}': "flexible_resource_min, replica_sets\n",
    "run --virtual-cluster CPU=4,GPU=1 -- true": """: '{"flexible_resource_min": {"CPU": 4, "GPU": 1}}'\n""",
    "vc create x --replica-sets t=1": """: '{"t": 1}'\n""",
    "run --after ok:j9 -- true": "--after: there is no job 'j9'\n",
    "events --job nope": "--job: there is no job 'nope'\n",
    "task list --job nope": "--job: there is no job 'nope'\n",
    "task run --job nope --no-wait -- true": "--job: there is no job 'nope'\n",
    "task list --state Infeasible": "'Infeasible'\nFix: it is a reason: write --filter state_reason=Infeasible\n",
    "ps --state outofmemory": "Fix: it is a reason: write --filter state_reason=OutOfMemory\n",
    "node list --state Infeasible": "Fix: valid names: ALIVE,",
    'node add a/b --simulated --resources {"CPU":1}': "Error: NODE: 'a/b' is not a node id",
}


@pytest.mark.parametrize(
    "line",
    [
        "run -c nosuch -- true",
        "vc create x --parent nosuch",
        "vc update nosuch --queue-order fifo",
        "vc stop nosuch",
        "vc get nosuch",
        "vc tree nosuch",
        "status -c nosuch",
        "job list --cluster nosuch",
        "events --cluster nosuch",
        "simulate --model lublin --jobs 1 --nodes 1 --cluster nosuch",
    ],
)
def test_an_unknown_cluster_is_told_in_the_same_words_everywhere(nodes: Cli, line: str) -> None:
    """Those of ant-ray's management API."""
    ran = nodes(line)
    assert (ran.code, ran.out) == (4, ""), ran.err
    assert "The virtual cluster nosuch does not exist.\n" in ran.err


OUT_OF_RANGE = {
    "run --max-retries -3 -- true": "--max-retries: -3 is out of range; write a number from 0 to 1000",
    "run --max-retries 1001 -- true": "--max-retries: 1001 is out of range; write a number from 0 to 1000",
    "run --max-retries 9999999999 -- true": "--max-retries: 9999999999 is out of range; write a number from 0 to 1000",
    "run --nodes 0 -- true": "--nodes: 0 is out of range; write a number from 1 to 10000",
    "run --nodes -1 -- true": "--nodes: -1 is out of range; write a number from 1 to 10000",
    "run --priority 4294967296 -- true": "--priority: 4294967296 is out of range; write a number from -2147483648 to",
    "run --num-cpus -1 -- true": '--num-cpus: "-1" is negative; write 0 or more',
    "run --num-gpus 1e30 -- true": "--num-gpus: ",
    "run --memory -1 -- true": "--memory: ",
    "run --time-limit 0 -- true": "--time-limit: the duration is 0; write at least 1s",
    "run --time-limit 9999999h -- true": '--time-limit: "9999999h" is longer than a hundred years; write a shorter',
    "run --grace -1 -- true": '--grace: "-1" is not a duration; write',
    "run --backoff 9999999h -- true": "--backoff: ",
    "task run --job j --max-retries -3 -- true": "--max-retries: -3 is out of range; write a number from 0 to 1000",
    "task run --job j --max-retries 5000 -- true": "--max-retries: 5000 is out of range; write a number from 0 to 1000",
    "node add --simulated --resources {} --count -7": "--count: -7 is out of range; write a number from 1 to 100000",
    "node add --simulated --resources {} --count 100001": "--count: 100001 is out of range; write a number from 1 to",
    "node heartbeat n --timeout 0": "--timeout: the duration is 0; write at least 1s",
    "node heartbeat n --timeout 90y": '--timeout: "90y" is not a duration; write',
    "node heartbeat n --timeout 500000h": "--timeout: 1800000000",
    "job edit last --priority 99999999999": "--priority: 99999999999 is out of range; write a number from -2147483648",
    "job stop last --grace 99999999999h": "--grace: ",
    "job logs last --tail -2": "--tail: -2 is ",
    "task logs last --tail -2": "--tail: -2 is ",
    "job list --limit -1": "--limit: -1 is negative; write 0 or more",
    "job list --limit 9999999999": "--limit: 9999999999 is out of range; write a number from 0 to 2147483648",
    "timeline --limit 9999999999": "--limit: 9999999999 is out of range; write a number from 0 to 2147483648",
    "events --limit 9999999999": "--limit: 9999999999 is out of range; write a number from 0 to 2147483648",
    "events --since 99999999999999999999": "--since: ",
    "prune --older-than 9999999h": "--older-than: ",
    "simulate --nodes 0": "--nodes: 0 is not a number of nodes; write --nodes 256",
    "simulate --limit-factor 0": "--limit-factor: 0 is not a factor; write 2 for twice the run time",
    "simulate --model lublin --jobs 0": "--jobs: 0 is not a number of jobs; write 1 to",
    "simulate --model lublin --load -1": "--load: -1 is not a load; write a part",
    "vc update team --weight 0": "--weight: 0 is less than 1; write 1 or more",
    "vc update team --backfill-depth -1": "--backfill-depth: ",
    "vc update team --max-running-jobs 99999999999": "--max-running-jobs: ",
}


@pytest.mark.parametrize("words", OUT_OF_RANGE)
def test_a_number_out_of_range_is_refused_in_one_wording(nodes: Cli, words: str) -> None:
    """The same here and through a server, whoever of the two finds it first."""
    ran = nodes(*words.split())
    assert (ran.code, ran.out) == (2, ""), ran.err
    problem, fix = ran.err.splitlines()
    assert f"{problem}; {fix.removeprefix('Fix: ')}".startswith(f"Error: {OUT_OF_RANGE[words]}")
    assert "openapi" not in fix


@pytest.mark.parametrize("words", IN_WORDS_OF_THE_COMMAND)
def test_an_error_of_a_verb_names_options(nodes: Cli, words: str) -> None:
    """Verbs speak of parameters; the command line makes options of these, and of no other word spelled like one."""
    ran = nodes(*words.split())
    assert ran.code in (2, 4)
    assert IN_WORDS_OF_THE_COMMAND[words] in ran.err


def test_a_shell_through_a_server_is_refused_in_its_own_words(
    nodes: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VCTL_ADDRESS", "unix:/nowhere")
    problem = "works on the machine of the state directory, not through a server"
    assert nodes("shell").err == f"Error: shell {problem}\nFix: run it there\n"
    assert nodes("run", "--stdin", "--", "cat").err.startswith(f"Error: --stdin {problem}\n")
