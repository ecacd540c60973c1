"""Values: compared, hashed and used as keys like frozen dataclasses."""

from __future__ import annotations

import pytest

from tests.specification import spec
from vctl.core.resources import Allocation
from vctl.core.values import field, fields, is_value, replace, value

pytestmark = spec("18.budgets")


@value(frozen=True, slots=True)
class Named:
    """Without a hash of its own."""

    name: str
    count: int = 0


def test_values_are_equal_and_hash_by_their_fields() -> None:
    """They are made by the dozen for each job, so nothing checks at run time that nobody changes one."""
    assert Named("a", 1) == Named("a", 1) != Named("a", 2)
    assert len({Named("a"), Named("a"), Named("b")}) == 2
    assert replace(Named("a"), count=3) == Named("a", 3)


def test_a_hash_of_its_own_stays() -> None:
    """Amounts are mappings, which have none."""
    one, other = Allocation({"CPU": 1}), Allocation({"CPU": 1})
    assert (one == other, hash(one) == hash(other)) == (True, True)


@value(frozen=True, slots=True, kw_only=True)
class More(Named):
    """With fields of another one, a method of its own, and a look at what it is given."""

    parts: list[str] = field(default_factory=list, compare=False)

    def __post_init__(self) -> None:
        assert self.name

    def __repr__(self) -> str:
        return "more"


@pytest.mark.parametrize("first", ["init", "repr", "eq", "hash"])
def test_methods_that_are_compiled_at_first_use_are_those_of_a_dataclass(first: str) -> None:
    """Most commands use few of the classes that they import."""

    @value(frozen=True, slots=True)
    class Fresh:
        name: str
        count: int = 0

    one = object.__new__(Fresh)
    for name, content in (("name", "a"), ("count", 0)):
        object.__setattr__(one, name, content)
    use = {
        "init": lambda: Fresh("b"),
        "repr": lambda: repr(one),
        "eq": lambda: one == one,
        "hash": lambda: hash(one),
    }
    use[first]()
    assert one == Fresh("a") != Fresh("a", 1)
    assert hash(one) == hash(Fresh("a"))
    assert repr(one).endswith("Fresh(name='a', count=0)")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        Fresh()  # type: ignore[call-arg]


@value(frozen=True, slots=True)
class Odd:
    """Its fields have the names of what copies it."""

    one: int
    new: int = 0
    kind: int = 0
    make: int = 0


def test_a_copy_with_other_contents_checks_them_and_needs_known_fields() -> None:
    for _ in range(2):  # the second time by the compiled function
        assert replace(Odd(1, 2), new=3, kind=4) == Odd(1, 3, 4)
        assert replace(Odd(1, 2, 3, 4)) == Odd(1, 2, 3, 4)
        assert replace(More("a", parts=["x"]), count=2).parts == ["x"]
        with pytest.raises(AssertionError):
            replace(More("a"), name="")
        with pytest.raises(TypeError, match="more"):
            replace(Odd(1), more=2)


def test_a_value_can_have_the_fields_of_another_one() -> None:
    assert More("a", parts=["x"]) == More("a") != More("b")
    assert (repr(More("a")), More("a").parts, More("a", 2).count) == ("more", [], 2)
    assert Named("a") != More("a")
    with pytest.raises(AssertionError):
        More("")


@value(slots=True)
class Count:
    """One that changes."""

    of: str
    seen: int = field(default=0, repr=False)


def test_a_value_that_is_not_frozen_changes_and_is_no_key() -> None:
    one = Count("a")
    one.seen += 1
    assert one == Count("a", 1) != Count("a")
    assert repr(one) == "Count(of='a')"
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_a_class_of_values_tells_its_fields() -> None:
    assert [(one.name, one.default) for one in fields(Count)][1:] == [("seen", 0)]
    assert [one.name for one in fields(More("a"))] == ["name", "count", "parts"]
    assert (is_value(Count), is_value(Count("a")), is_value(int)) == (True, True, False)
    match Named("a", 2):
        case Named(name, count):
            assert (name, count) == ("a", 2)


def test_fields_may_be_left_out_of_the_constructor_and_of_the_hash() -> None:
    @value(frozen=True, slots=True)
    class Keyed:
        name: str
        amounts: dict[str, int] = field(hash=False)
        total: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", sum(self.amounts.values()))

    one, other = Keyed("a", {"CPU": 1}), Keyed("a", {"CPU": 2})
    assert (one.total, other.total) == (1, 2)
    assert one != other == Keyed("a", {"CPU": 2})
    with pytest.raises(TypeError, match="positional"):
        Keyed("a", {}, 3)  # type: ignore[call-arg]


def test_without_eq_an_object_is_equal_to_itself_only() -> None:
    @value(eq=False)
    class Search:
        name: str

    one, other = Search("a"), Search("a")
    assert one == one != other
    assert len({one, other}) == 2
    assert repr(one).endswith("Search(name='a')")
