//! The values of one field of all payloads, each with the slots that have it.
//! Derived from the payloads: built at the first filter that asks, kept up to date by writes.

use super::check::{counts, has_null, is_empty, passes_place};
use super::geo;
use crate::{Condition, Direction, FieldTest, GeoPoint, Instant, JsonPath, OrderBy, Payload, Range};
use roaring::{MultiOps, RoaringBitmap};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

/// Longer texts are compared in the payloads.
const KEYWORD_BYTES_MAX: usize = 128;

#[derive(Clone, Debug)]
pub(crate) struct FieldIndex {
    key: JsonPath,
    keywords: HashMap<Keyword, RoaringBitmap>,
    numbers: BTreeMap<Ordered, RoaringBitmap>,
    instants: BTreeMap<i64, RoaringBitmap>,
    places: HashMap<u32, Vec<GeoPoint>>,
    counts: BTreeMap<u64, RoaringBitmap>,
    /// Slots with values that are neither null nor keywords.
    others: RoaringBitmap,
    not_empty: RoaringBitmap,
    nulls: RoaringBitmap,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Keyword {
    Text(Box<str>),
    Integer(i128),
    Bool(bool),
}

impl Keyword {
    fn value(&self) -> Value {
        match self {
            Self::Text(text) => Value::from(&**text),
            Self::Bool(flag) => Value::from(*flag),
            // It was read from such a number.
            Self::Integer(number) => u64::try_from(*number).map_or_else(|_| Value::from(*number as i64), Value::from),
        }
    }
}

/// A number of JSON, which is never NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ordered(f64);

impl Eq for Ordered {}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // Zero and minus zero are one number.
        (self.0 + 0.0).total_cmp(&(other.0 + 0.0))
    }
}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl FieldIndex {
    pub(crate) fn new(key: JsonPath) -> Self {
        Self {
            key,
            keywords: HashMap::new(),
            numbers: BTreeMap::new(),
            instants: BTreeMap::new(),
            places: HashMap::new(),
            counts: BTreeMap::new(),
            others: RoaringBitmap::new(),
            not_empty: RoaringBitmap::new(),
            nulls: RoaringBitmap::new(),
        }
    }

    pub(crate) fn insert(&mut self, slot: u32, payload: &Payload) {
        self.update(payload, &mut |slots| {
            slots.insert(slot);
        });
        let mut places = Vec::new();
        self.key.visit_flat(payload, &mut |value| places.extend(geo::place(value)));
        if !places.is_empty() {
            self.places.insert(slot, places);
        }
    }

    /// Takes back what `insert` did with the same payload.
    pub(crate) fn remove(&mut self, slot: u32, payload: &Payload) {
        self.update(payload, &mut |slots| {
            slots.remove(slot);
        });
        self.places.remove(&slot);
    }

    fn update(&mut self, payload: &Payload, change: &mut dyn FnMut(&mut RoaringBitmap)) {
        let key = self.key.clone();
        key.visit_flat(payload, &mut |value| {
            match keyword(value) {
                Some(keyword) => change_entry(&mut self.keywords, keyword, change),
                None if value.is_null() => {}
                None => change(&mut self.others),
            }
            if let Some(number) = value.as_f64() {
                change_ordered(&mut self.numbers, Ordered(number), change);
            }
            if let Some(instant) = value.as_str().and_then(Instant::parse) {
                change_ordered(&mut self.instants, instant.0, change);
            }
        });
        let counts = counts(payload, &key);
        // A single 0 is a field that is not there: `ValuesCount` finds those by what is left.
        for count in counts.iter().filter(|count| **count > 0 || counts.len() > 1) {
            change_ordered(&mut self.counts, *count, change);
        }
        if !is_empty(payload, &key) {
            change(&mut self.not_empty);
        }
        if has_null(payload, &key) {
            change(&mut self.nulls);
        }
    }

    /// The slots of `live` that meet a condition on this field; `None` if it must be checked in the payloads.
    pub(crate) fn slots(&self, condition: &Condition, live: &RoaringBitmap) -> Option<RoaringBitmap> {
        match condition {
            Condition::IsEmpty(_) => Some(live - &self.not_empty),
            Condition::IsNull(_) => Some(&self.nulls & live),
            Condition::Field { test, .. } => Some(self.passing(test, live)? & live),
            _ => None,
        }
    }

    /// At least the slots that have the first `limit` of all numbers and dates, in ascending or descending order from `start` on.
    pub(crate) fn first(&self, order: &OrderBy, slots: &RoaringBitmap, limit: usize) -> RoaringBitmap {
        let start = order.start_from.as_ref().and_then(serde_json::Number::as_f64);
        let numbers = self.numbers.iter().map(|(number, slots)| (number.0, slots));
        let instants = self.instants.iter().map(|(micros, slots)| (*micros as f64, slots));
        match order.direction {
            Direction::Ascending => {
                let is_before = |value: f64| start.is_some_and(|start| value < start);
                enough(numbers.skip_while(|(value, _)| is_before(*value)), slots, limit)
                    | enough(instants.skip_while(|(value, _)| is_before(*value)), slots, limit)
            }
            Direction::Descending => {
                let is_before = |value: f64| start.is_some_and(|start| value > start);
                enough(numbers.rev().skip_while(|(value, _)| is_before(*value)), slots, limit)
                    | enough(instants.rev().skip_while(|(value, _)| is_before(*value)), slots, limit)
            }
        }
    }

    /// The keywords that slots have and how many have each; `None` if one of them has a value that is no keyword.
    pub(crate) fn counts(&self, slots: &RoaringBitmap) -> Option<Vec<(Value, usize)>> {
        if !self.others.is_disjoint(slots) {
            return None;
        }
        let counts = self.keywords.iter().map(|(keyword, having)| (keyword, having.intersection_len(slots) as usize));
        Some(counts.filter(|(_, count)| *count > 0).map(|(keyword, count)| (keyword.value(), count)).collect())
    }

    fn passing(&self, test: &FieldTest, live: &RoaringBitmap) -> Option<RoaringBitmap> {
        match test {
            FieldTest::Value(value) => self.any(std::slice::from_ref(value)),
            FieldTest::Any(values) => self.any(values),
            FieldTest::Except(values) => {
                let unwanted = values.iter().map(keyword).collect::<Option<Vec<_>>>()?;
                let wanted = self.keywords.iter().filter(|(keyword, _)| !unwanted.contains(keyword));
                Some(wanted.fold(self.others.clone(), |all, (_, slots)| all | slots))
            }
            FieldTest::Range(range) => Some(within(&self.numbers, &map(range, |bound| Ordered(*bound)))),
            FieldTest::DatetimeRange(range) => Some(within(&self.instants, &map(range, |bound| bound.0))),
            FieldTest::ValuesCount(range) => {
                let mut found = within(&self.counts, range);
                if range.contains(&0) {
                    let some = self.counts.iter().filter(|(count, _)| **count > 0);
                    found |= some.fold(live.clone(), |left, (_, slots)| left - slots);
                }
                Some(found)
            }
            FieldTest::GeoBox { .. } | FieldTest::GeoRadius { .. } | FieldTest::GeoPolygon { .. } => {
                let passes = |places: &Vec<GeoPoint>| places.iter().any(|place| passes_place(test, *place));
                Some(self.places.iter().filter(|(_, places)| passes(places)).map(|(slot, _)| *slot).collect())
            }
            FieldTest::Text(_)
            | FieldTest::TextAny(_)
            | FieldTest::Phrase(_)
            | FieldTest::Prefix(_)
            | FieldTest::Substring(_) => None,
        }
    }

    fn any(&self, values: &[Value]) -> Option<RoaringBitmap> {
        let mut found = RoaringBitmap::new();
        for value in values {
            found |= self.keywords.get(&keyword(value)?).unwrap_or(&RoaringBitmap::new());
        }
        Some(found)
    }
}

fn keyword(value: &Value) -> Option<Keyword> {
    match value {
        Value::String(text) if text.len() <= KEYWORD_BYTES_MAX => Some(Keyword::Text(text.as_str().into())),
        Value::Bool(flag) => Some(Keyword::Bool(*flag)),
        Value::Number(number) => {
            number.as_i64().map(i128::from).or(number.as_u64().map(i128::from)).map(Keyword::Integer)
        }
        _ => None,
    }
}

fn change_entry(
    entries: &mut HashMap<Keyword, RoaringBitmap>,
    keyword: Keyword,
    change: &mut dyn FnMut(&mut RoaringBitmap),
) {
    let slots = entries.entry(keyword.clone()).or_default();
    change(slots);
    if slots.is_empty() {
        entries.remove(&keyword);
    }
}

fn change_ordered<K: Ord + Copy>(
    entries: &mut BTreeMap<K, RoaringBitmap>,
    key: K,
    change: &mut dyn FnMut(&mut RoaringBitmap),
) {
    let slots = entries.entry(key).or_default();
    change(slots);
    if slots.is_empty() {
        entries.remove(&key);
    }
}

/// Slots by value until there are enough of them.
fn enough<'i>(
    values: impl Iterator<Item = (f64, &'i RoaringBitmap)>,
    slots: &RoaringBitmap,
    limit: usize,
) -> RoaringBitmap {
    let mut found = RoaringBitmap::new();
    let mut count = 0;
    for (_, having) in values {
        if count >= limit {
            break;
        }
        let having = having & slots;
        count += having.len() as usize;
        found |= having;
    }
    found
}

fn map<T, U>(range: &Range<T>, convert: impl Fn(&T) -> U) -> Range<U> {
    let convert = |bound: &Option<T>| bound.as_ref().map(&convert);
    Range { lt: convert(&range.lt), lte: convert(&range.lte), gt: convert(&range.gt), gte: convert(&range.gte) }
}

/// The slots of all keys within the bounds.
fn within<K: Ord + Copy>(entries: &BTreeMap<K, RoaringBitmap>, range: &Range<K>) -> RoaringBitmap {
    // The stricter of two bounds decides; `contains` checks both.
    let lower = match (range.gt, range.gte) {
        (Some(bound), _) => Bound::Excluded(bound),
        (None, Some(bound)) => Bound::Included(bound),
        (None, None) => Bound::Unbounded,
    };
    let from = entries.range((lower, Bound::Unbounded));
    let inside = from.take_while(|(key, _)| {
        range.lt.is_none_or(|bound| **key < bound) && range.lte.is_none_or(|bound| **key <= bound)
    });
    inside.filter(|(key, _)| range.contains(key)).map(|(_, slots)| slots).union()
}
