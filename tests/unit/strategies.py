"""What hypothesis draws from: texts and values that every store can keep."""

from __future__ import annotations

from hypothesis import strategies as st

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
# Names that JavaScript treats apart when it lists an object's keys.
names = texts | st.integers(0, 100).map(str) | st.sampled_from(["__proto__", "\U0001f600", "\uffff"])
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | texts
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(names, inner, max_size=5), max_leaves=15
)
