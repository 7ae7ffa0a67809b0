//! Ranks points by their vectors: nearest, recommended, discovered, by context.
//! Similarities are larger for better points, whatever the distance, until they are shown.

use super::View;
use super::dense::shown;
use super::schema::Kind;
use crate::filter::Source;
use crate::text::{Hit, Scope};
use crate::{ContextPair, Distance, Error, Example, Feedback, Query, Result, Strategy, Vector};
use roaring::RoaringBitmap;

/// What keeps a pair whose sides are equal from counting as decided.
const EPSILON: f32 = f32::EPSILON;

/// Which points are compared by which vector, and how many are wanted.
pub(super) struct Ranking<'a, 'v> {
    view: &'a View<'v>,
    number: usize,
    name: &'a str,
    /// Only these; `None`: all.
    allowed: Option<RoaringBitmap>,
    limit: usize,
    threshold: Option<f32>,
    exact: bool,
}

impl<'a, 'v> Ranking<'a, 'v> {
    pub(super) fn new(view: &'a View<'v>, name: &'a str, allowed: Option<RoaringBitmap>) -> Result<Self> {
        let number = view.collection.schema.number(name)?;
        Ok(Self { view, number, name, allowed, limit: 0, threshold: None, exact: false })
    }

    /// At most this number, each strictly better than the query's threshold.
    pub(super) fn best(self, limit: usize, query: &Query) -> Self {
        Self { limit, threshold: query.score_threshold, exact: query.exact, ..self }
    }

    pub(super) fn nearest(mut self, example: &Example) -> Result<Vec<Hit>> {
        let vector = self.vector(example)?;
        self.nearest_to(&vector)
    }

    pub(super) fn recommended(
        mut self,
        positive: &[Example],
        negative: &[Example],
        strategy: Strategy,
    ) -> Result<Vec<Hit>> {
        let positive = self.vectors(positive)?;
        let negative = self.vectors(negative)?;
        if strategy == Strategy::AverageVector {
            if positive.is_empty() {
                return Err(Error::bad("a recommendation by average_vector needs a positive example"));
            }
            return self.nearest_to(&average(&positive, &negative));
        }
        if positive.is_empty() && negative.is_empty() {
            return Err(Error::bad("a recommendation needs a positive or a negative example"));
        }
        let slots = self.slots();
        let positive = self.all_scores(&positive, &slots)?;
        let negative = self.all_scores(&negative, &slots)?;
        let best = |lists: &[Vec<f32>], at: usize| lists.iter().map(|list| list[at]).fold(f32::NEG_INFINITY, f32::max);
        let sum = |lists: &[Vec<f32>], at: usize| lists.iter().map(|list| list[at]).sum::<f32>();
        let score = |at: usize| match strategy {
            Strategy::SumScores => sum(&positive, at) - sum(&negative, at),
            _ => match (best(&positive, at), best(&negative, at)) {
                (liked, disliked) if liked > disliked => half_sigmoid(liked),
                (_, disliked) => -half_sigmoid(disliked),
            },
        };
        Ok(self.sorted(&slots, score))
    }

    /// Points on the positive side of more pairs come first, then those near the target.
    pub(super) fn discovered(mut self, target: &Example, context: &[ContextPair]) -> Result<Vec<Hit>> {
        let target = self.vector(target)?;
        let pairs = self.pairs(context)?;
        let slots = self.slots();
        let pairs = self.pair_scores(&pairs, &slots)?;
        let target = self.scores(&target, &slots)?;
        let rank = |at: usize| {
            let sides = pairs.iter().map(|(positive, negative)| match positive[at].total_cmp(&negative[at]) {
                std::cmp::Ordering::Greater => 1.0,
                std::cmp::Ordering::Equal => 0.0,
                std::cmp::Ordering::Less => -1.0,
            });
            sides.sum::<f32>()
        };
        Ok(self.sorted(&slots, |at| rank(at) + half_sigmoid(target[at])))
    }

    /// Points lose as much as they are on the negative side of pairs.
    pub(super) fn in_context(mut self, context: &[ContextPair]) -> Result<Vec<Hit>> {
        if context.is_empty() {
            return Err(Error::bad("a context query needs at least one pair"));
        }
        let pairs = self.pairs(context)?;
        let slots = self.slots();
        let pairs = self.pair_scores(&pairs, &slots)?;
        let loss = |(positive, negative): &(Vec<f32>, Vec<f32>), at: usize| {
            sigmoid((positive[at] - negative[at] - EPSILON).min(0.0))
        };
        Ok(self.sorted(&slots, |at| pairs.iter().map(|pair| loss(pair, at)).sum()))
    }

    /// Points near the target, and nearer to examples that were found good than to those that were not.
    pub(super) fn fed_back(mut self, feedback: &Feedback) -> Result<Vec<Hit>> {
        let target = self.vector(&feedback.target)?;
        let examples = feedback.examples.iter().map(|(example, said)| Ok((self.vector(example)?, *said)));
        let examples = examples.collect::<Result<Vec<_>>>()?;
        let slots = self.slots();
        let target = self.scores(&target, &slots)?;
        // The pairs add up to one weight for each example.
        let mut weighted = Vec::with_capacity(examples.len());
        for (vector, said) in &examples {
            let weight = |other: f32| match said - other {
                better if better > 0.0 => better.powf(feedback.b) * feedback.c,
                worse if worse < 0.0 => -(-worse).powf(feedback.b) * feedback.c,
                _ => 0.0,
            };
            let weight: f32 = examples.iter().map(|(_, other)| weight(*other)).sum();
            weighted.push((weight, self.scores(vector, &slots)?));
        }
        let moved = |at: usize| weighted.iter().map(|(weight, scores)| weight * scores[at]).sum::<f32>();
        Ok(self.sorted(&slots, |at| feedback.a * target[at] + moved(at)))
    }

    fn distance(&self) -> Distance {
        match &self.view.collection.schema.vectors()[self.number].kind {
            Kind::Dense(config) | Kind::Multi(config) => config.distance,
            Kind::Sparse(_) => Distance::Dot,
        }
    }

    /// The vector of an example. A point that is one is not found.
    fn vector(&mut self, example: &Example) -> Result<Vector> {
        let id = match example {
            Example::Vector(vector) => {
                let mut vector = vector.clone();
                self.view.collection.schema.check_query(self.name, &mut vector)?;
                return Ok(vector);
            }
            Example::Id(id) => *id,
        };
        let missing = || Error::NotFound { what: format!("No point with id {id} found") };
        let slot = self.view.slot_of(id).ok_or_else(missing)?;
        if !self.view.has_vector(slot, self.name) {
            let what = format!("vector with name '{}' for point {id}", self.name);
            return Err(Error::NotFound { what });
        }
        self.allowed.get_or_insert_with(|| self.view.live().clone()).remove(slot);
        let stored = self.view.stored_vector(slot, self.number)?;
        stored.map_err(|what| self.view.collection.store.damaged(what))
    }

    fn vectors(&mut self, examples: &[Example]) -> Result<Vec<Vector>> {
        examples.iter().map(|example| self.vector(example)).collect()
    }

    fn pairs(&mut self, context: &[ContextPair]) -> Result<Vec<(Vector, Vector)>> {
        context.iter().map(|pair| Ok((self.vector(&pair.positive)?, self.vector(&pair.negative)?))).collect()
    }

    fn nearest_to(&self, vector: &Vector) -> Result<Vec<Hit>> {
        let mut hits = self.top(vector, self.limit, self.exact)?;
        let distance = self.distance();
        hits.iter_mut().for_each(|hit| hit.score = shown(distance, hit.score));
        hits.retain(|hit| {
            self.threshold.is_none_or(|threshold| match distance.larger_is_better() {
                true => hit.score > threshold,
                false => hit.score < threshold,
            })
        });
        Ok(hits)
    }

    /// The best slots by similarity.
    fn top(&self, vector: &Vector, limit: usize, exact: bool) -> Result<Vec<Hit>> {
        let bits = self.allowed.as_ref().map(bits);
        let scope = Scope { limit, allowed: bits.as_deref(), ..Scope::default() };
        let (state, schema, reader) = (self.view.state(), &self.view.collection.schema, &self.view.reader);
        match vector {
            Vector::Dense(query) => {
                let hardware = &self.view.collection.hardware;
                state.dense(self.number, schema, reader, hardware)?.top(query, &scope, exact)
            }
            Vector::Multi(query) => Ok(state.multi(self.number, schema, reader)?.top(query, &scope)),
            Vector::Sparse { indices, values } => {
                Ok(state.sparse(self.number, schema, reader)?.search(indices, values, &scope))
            }
        }
    }

    /// The slots that are compared: allowed, and with the vector.
    fn slots(&self) -> Vec<u32> {
        let allowed = self.allowed.as_ref().unwrap_or(self.view.live());
        (self.view.with_vector(self.name) & allowed).into_iter().collect()
    }

    /// The similarity of each slot; 0 if nothing can be compared.
    fn scores(&self, vector: &Vector, slots: &[u32]) -> Result<Vec<f32>> {
        let mut by_slot = vec![0.0; self.view.state().slots() as usize];
        for hit in self.top(vector, slots.len(), true)? {
            by_slot[hit.slot as usize] = hit.score;
        }
        Ok(slots.iter().map(|slot| by_slot[*slot as usize]).collect())
    }

    fn all_scores(&self, vectors: &[Vector], slots: &[u32]) -> Result<Vec<Vec<f32>>> {
        vectors.iter().map(|vector| self.scores(vector, slots)).collect()
    }

    fn pair_scores(&self, pairs: &[(Vector, Vector)], slots: &[u32]) -> Result<Vec<(Vec<f32>, Vec<f32>)>> {
        pairs
            .iter()
            .map(|(positive, negative)| Ok((self.scores(positive, slots)?, self.scores(negative, slots)?)))
            .collect()
    }

    fn sorted(&self, slots: &[u32], score: impl Fn(usize) -> f32) -> Vec<Hit> {
        let hits = slots.iter().enumerate().map(|(at, slot)| Hit { slot: *slot, score: score(at) });
        let mut hits: Vec<Hit> =
            hits.filter(|hit| self.threshold.is_none_or(|threshold| hit.score > threshold)).collect();
        hits.sort_by(|one, other| other.score.total_cmp(&one.score).then(one.slot.cmp(&other.slot)));
        hits.truncate(self.limit);
        hits
    }
}

/// A bit for each slot. Reads the portable form of the bitmap, in which dense parts are words already.
pub(super) fn bits(slots: &RoaringBitmap) -> Vec<u64> {
    const PART_WORDS: usize = 1024;
    const LISTED_MAX: usize = 4096;
    let mut slots = slots.clone();
    slots.remove_run_compression();
    let mut form = Vec::with_capacity(slots.serialized_size());
    slots.serialize_into(&mut form).unwrap_or_else(|error| unreachable!("memory takes all bytes: {error}"));
    // A head of 8 bytes that ends with the number of parts; for each its key and length, then its place, then all parts.
    let parts = u32::from_le_bytes([form[4], form[5], form[6], form[7]]) as usize;
    let (descriptions, mut rest) = form[8..].split_at(4 * parts);
    rest = &rest[4 * parts..];
    let mut bits = vec![0; slots.max().map_or(0, |last| (last as usize >> 16) + 1) * PART_WORDS];
    for [key, key_high, length, length_high] in descriptions.as_chunks().0 {
        let words = &mut bits[usize::from(u16::from_le_bytes([*key, *key_high])) * PART_WORDS..][..PART_WORDS];
        let length = usize::from(u16::from_le_bytes([*length, *length_high])) + 1;
        if length <= LISTED_MAX {
            let (listed, others) = rest.split_at(2 * length);
            for slot in listed.as_chunks().0.iter().map(|slot| u16::from_le_bytes(*slot)) {
                words[usize::from(slot) / 64] |= 1 << (slot % 64);
            }
            rest = others;
        } else {
            let (dense, others) = rest.split_at(8 * PART_WORDS);
            words.iter_mut().zip(dense.as_chunks().0).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
            rest = others;
        }
    }
    bits
}

fn sigmoid(score: f32) -> f32 {
    if score.is_finite() { score / (1.0 + score.abs()) } else { score }
}

/// From 0 to 1.
fn half_sigmoid(score: f32) -> f32 {
    0.5 * (sigmoid(score) + 1.0)
}

/// One vector for a search: twice the average of the positive less that of the negative examples.
fn average(positive: &[Vector], negative: &[Vector]) -> Vector {
    let weight = |count: usize, factor: f64| factor / count.max(1) as f64;
    let factor = if negative.is_empty() { 1.0 } else { 2.0 };
    let weighted = || {
        let positive = positive.iter().map(|vector| (vector, weight(positive.len(), factor)));
        positive.chain(negative.iter().map(|vector| (vector, -weight(negative.len(), 1.0))))
    };
    match &positive[0] {
        Vector::Dense(first) => {
            let mut sums = vec![0.0f64; first.len()];
            for (vector, weight) in weighted() {
                if let Vector::Dense(values) = vector {
                    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(*value) * weight);
                }
            }
            Vector::Dense(sums.into_iter().map(|sum| sum as f32).collect())
        }
        Vector::Sparse { .. } => {
            let mut sums = std::collections::BTreeMap::<u32, f64>::new();
            for (vector, weight) in weighted() {
                if let Vector::Sparse { indices, values } = vector {
                    let pairs = indices.iter().zip(values);
                    pairs.for_each(|(index, value)| *sums.entry(*index).or_default() += f64::from(*value) * weight);
                }
            }
            let (indices, values) = sums.into_iter().map(|(index, sum)| (index, sum as f32)).unzip();
            Vector::Sparse { indices, values }
        }
        Vector::Multi(_) => {
            let signed = weighted().filter_map(|(vector, weight)| match vector {
                Vector::Multi(rows) => Some((rows, weight.signum() as f32)),
                _ => None,
            });
            let rows = signed
                .flat_map(|(rows, sign)| rows.iter().map(move |row| row.iter().map(|value| value * sign).collect()));
            Vector::Multi(rows.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use magray_device::scan::is_set;

    #[test]
    fn every_slot_has_its_bit() {
        let mut ranges = RoaringBitmap::from_iter([0, 63, 64, 65_535]);
        ranges.insert_range(200_000..290_000);
        ranges.insert(1_000_000);
        let mut runs = ranges.clone();
        runs.optimize();
        let scattered = (0..400_000).filter(|slot| slot % 3 == 1).collect();
        for slots in [RoaringBitmap::new(), ranges, runs, scattered] {
            let bits = bits(&slots);
            assert!((0..1_100_000).all(|slot| is_set(&bits, slot) == slots.contains(slot)), "{slots:?}");
        }
    }
}
