//! Which slots meet a filter, found before anything is ranked.
//! Uses indexes of fields where there are some; checks payloads only of slots that can still be in the result.

mod check;
mod field_index;
pub(crate) mod geo;
#[cfg(test)]
mod tests;

pub(crate) use field_index::FieldIndex;

use crate::{Condition, FieldTest, Filter, JsonPath, Payload, PointId, Result};
use check::{Subject, meets_condition};
use roaring::RoaringBitmap;
use std::sync::Arc;

/// Where filters look. Everything is of one moment.
pub(crate) trait Source {
    /// The slots that have points.
    fn live(&self) -> &RoaringBitmap;
    fn slot_of(&self, id: PointId) -> Option<u32>;
    fn id_of(&self, slot: u32) -> Option<PointId>;
    fn has_vector(&self, slot: u32, name: &str) -> bool;
    /// The slots whose points have a vector.
    fn with_vector(&self, name: &str) -> RoaringBitmap;
    /// The index of a field; `None` if there may be none.
    fn field(&self, key: &JsonPath) -> Result<Option<Arc<FieldIndex>>>;
    /// Nothing for a payload that is damaged.
    fn payload(&self, slot: u32) -> Result<Option<Payload>>;
}

/// The slots that meet a filter.
pub(crate) fn slots(filter: &Filter, source: &dyn Source) -> Result<RoaringBitmap> {
    within(filter, source, source.live().clone())
}

/// The candidates that meet a filter.
fn within(filter: &Filter, source: &dyn Source, mut candidates: RoaringBitmap) -> Result<RoaringBitmap> {
    // Conditions that read payloads come last, when few candidates are left.
    let mut must: Vec<&Condition> = filter.must.iter().collect();
    must.sort_by_key(|condition| reads_payloads(condition));
    for condition in must {
        candidates = holding(condition, source, &candidates)?;
    }
    let mut must_not: Vec<&Condition> = filter.must_not.iter().collect();
    must_not.sort_by_key(|condition| reads_payloads(condition));
    for condition in must_not {
        candidates = &candidates - holding(condition, source, &candidates)?;
    }
    if !filter.should.is_empty() {
        let mut found = RoaringBitmap::new();
        for condition in &filter.should {
            found |= holding(condition, source, &(&candidates - &found))?;
        }
        candidates = found;
    }
    if let Some((conditions, least)) = &filter.min_should {
        let held = conditions.iter().map(|condition| holding(condition, source, &candidates));
        let held = held.collect::<Result<Vec<_>>>()?;
        let count = |slot| held.iter().filter(|slots| slots.contains(slot)).count();
        candidates = candidates.iter().filter(|slot| count(*slot) >= *least).collect();
    }
    Ok(candidates)
}

/// Whether a condition holds for one slot with this payload.
pub(crate) fn holds(condition: &Condition, source: &dyn Source, slot: u32, payload: &Payload) -> bool {
    let has_vector = |name: &str| source.has_vector(slot, name);
    meets_condition(condition, &Subject { payload, id: source.id_of(slot), has_vector: &has_vector })
}

/// Whether no index can answer.
fn reads_payloads(condition: &Condition) -> bool {
    match condition {
        Condition::Nested { .. } => true,
        Condition::Field { test, .. } => matches!(
            test,
            FieldTest::Text(_)
                | FieldTest::TextAny(_)
                | FieldTest::Phrase(_)
                | FieldTest::Prefix(_)
                | FieldTest::Substring(_)
        ),
        Condition::Filter(filter) => {
            let some = filter.min_should.iter().flat_map(|(conditions, _)| conditions);
            filter.must.iter().chain(&filter.should).chain(&filter.must_not).chain(some).any(reads_payloads)
        }
        _ => false,
    }
}

/// The candidates that a condition holds for.
fn holding(condition: &Condition, source: &dyn Source, candidates: &RoaringBitmap) -> Result<RoaringBitmap> {
    match condition {
        Condition::HasId(ids) => {
            let slots: RoaringBitmap = ids.iter().filter_map(|id| source.slot_of(*id)).collect();
            return Ok(slots & candidates);
        }
        Condition::HasVector(name) => {
            return Ok(source.with_vector(name) & candidates);
        }
        Condition::Filter(filter) => return within(filter, source, candidates.clone()),
        Condition::Field { key, .. } | Condition::IsEmpty(key) | Condition::IsNull(key) => {
            if !reads_payloads(condition)
                && let Some(index) = source.field(key)?
                && let Some(slots) = index.slots(condition, candidates)
            {
                return Ok(slots);
            }
        }
        Condition::Nested { .. } => {}
    }
    let mut found = RoaringBitmap::new();
    for slot in candidates {
        let Some(payload) = source.payload(slot)? else {
            continue;
        };
        if holds(condition, source, slot, &payload) {
            found.insert(slot);
        }
    }
    Ok(found)
}
