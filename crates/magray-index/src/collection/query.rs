//! Ranked queries: filters first, then prefetches, then the ranking itself, then what comes back.
//! All of a query sees one moment of the collection.

use super::View;
use super::formula::Scoring;
use super::scores::{Ranking, bits};
use crate::filter::Source;
use crate::text::{Bm25, Hit, Rrf, Scope, fuse_dbsf, fuse_rrf};
use crate::{Error, Formula, Fusion, Group, GroupQuery, Query, QueryKind, Result, Scored};
use roaring::RoaringBitmap;
use serde_json::{Number, Value};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// How deep prefetches may lie in each other.
const DEPTH_MAX: usize = 16;

/// A point in its place.
struct Ranked {
    slot: u32,
    score: f32,
    order_value: Option<Number>,
}

impl From<Hit> for Ranked {
    fn from(hit: Hit) -> Self {
        Self { slot: hit.slot, score: hit.score, order_value: None }
    }
}

impl View<'_> {
    pub(super) fn query(&self, query: &Query) -> Result<Vec<Scored>> {
        let ranked = self.ranked(query, None, DEPTH_MAX)?;
        // What is drawn by chance has no first page to pass over.
        let passed_over = if matches!(query.what, QueryKind::Sample) { 0 } else { query.offset };
        ranked.into_iter().skip(passed_over).map(|ranked| self.scored(ranked, query)).collect()
    }

    pub(super) fn query_groups(&self, request: &GroupQuery) -> Result<Vec<Group>> {
        let all = self.state().ids().len();
        let (groups_max, size) = (request.query.limit, request.group_size);
        // Most often some more than can be shown are enough; otherwise everything is ranked.
        let some = groups_max.saturating_mul(size).saturating_mul(8).clamp(256, all.max(256));
        let mut limits = if request.query.prefetch.is_empty() { vec![some, all] } else { vec![all] };
        limits.dedup();
        let mut groups: Vec<Group> = Vec::new();
        for limit in limits {
            let mut query = Query { offset: 0, ..request.query.clone() };
            raise_limits(&mut query, limit);
            let ranked = self.ranked(&query, None, DEPTH_MAX)?;
            let is_everything = ranked.len() < limit || limit == all;
            groups = Vec::new();
            for ranked in ranked {
                if groups.len() == groups_max && groups.iter().all(|group| group.hits.len() == size) {
                    return Ok(groups);
                }
                let Some(ids) = self.payload(ranked.slot)?.and_then(|payload| group_ids(&payload, request)) else {
                    continue;
                };
                let scored = self.scored(ranked, &request.query)?;
                for id in ids {
                    let has_room = groups.len() < groups_max;
                    match groups.iter_mut().find(|group| group.id == id) {
                        Some(group) if group.hits.len() < size => group.hits.push(scored.clone()),
                        Some(_) => {}
                        None if has_room => groups.push(Group { id, hits: vec![scored.clone()] }),
                        None => {}
                    }
                }
            }
            if is_everything {
                break;
            }
        }
        Ok(groups)
    }

    fn scored(&self, ranked: Ranked, query: &Query) -> Result<Scored> {
        let record = self.record(ranked.slot, &query.with_payload, &query.with_vectors)?.record;
        Ok(Scored {
            id: record.id,
            score: ranked.score,
            payload: record.payload,
            vectors: record.vectors,
            order_value: ranked.order_value,
        })
    }

    /// The best `offset + limit` points, of those that the query around this one allows.
    fn ranked(&self, query: &Query, outer: Option<&RoaringBitmap>, depth: usize) -> Result<Vec<Ranked>> {
        let depth =
            depth.checked_sub(1).ok_or_else(|| Error::bad(format!("prefetches lie more than {DEPTH_MAX} deep")))?;
        let own = query.filter.as_ref().map(|filter| self.meeting(filter)).transpose()?;
        let mut allowed = match (own, outer) {
            (Some(own), Some(outer)) => Some(own & outer),
            (own, outer) => own.or_else(|| outer.cloned()),
        };
        let wanted = query.limit.saturating_add(query.offset);
        let lists = query.prefetch.iter().map(|prefetch| self.ranked(prefetch, allowed.as_ref(), depth));
        let lists = lists.collect::<Result<Vec<_>>>()?;
        match &query.what {
            QueryKind::Fusion(fusion) => return fused(&lists, fusion, query, wanted),
            QueryKind::Formula(formula) => return self.scored_anew(&lists, formula, query, wanted),
            _ => {}
        }
        if !query.prefetch.is_empty() {
            let found: RoaringBitmap = lists.iter().flatten().map(|ranked| ranked.slot).collect();
            if found.is_empty() {
                return Ok(Vec::new());
            }
            allowed = Some(found);
        }
        self.ranked_alone(query, allowed, wanted)
    }

    /// What the prefetches found, by a formula.
    fn scored_anew(
        &self,
        lists: &[Vec<Ranked>],
        formula: &Formula,
        query: &Query,
        wanted: usize,
    ) -> Result<Vec<Ranked>> {
        if lists.is_empty() {
            return Err(Error::bad("a formula needs prefetches"));
        }
        let by_slot = |list: &Vec<Ranked>| list.iter().map(|ranked| (ranked.slot, ranked.score)).collect();
        let scores: Vec<HashMap<u32, f32>> = lists.iter().map(by_slot).collect();
        let found: RoaringBitmap = lists.iter().flatten().map(|ranked| ranked.slot).collect();
        let scoring = Scoring { view: self, formula, scores: &scores };
        let scored = found.into_iter().map(|slot| Ok(Hit { slot, score: scoring.score(slot)? }));
        let mut hits = scored.collect::<Result<Vec<_>>>()?;
        hits.retain(|hit| query.score_threshold.is_none_or(|threshold| hit.score >= threshold));
        hits.sort_by(|one, other| other.score.total_cmp(&one.score));
        Ok(hits.into_iter().take(wanted).map(Ranked::from).collect())
    }

    fn ranked_alone(&self, query: &Query, allowed: Option<RoaringBitmap>, wanted: usize) -> Result<Vec<Ranked>> {
        let slots = || allowed.as_ref().unwrap_or(self.live());
        let plain = |slot: u32, score: f32| Ranked { slot, score, order_value: None };
        match &query.what {
            QueryKind::All => {
                let ids = self.state().ids().values().filter(|slot| slots().contains(**slot));
                Ok(ids.take(wanted).map(|slot| plain(*slot, 1.0)).collect())
            }
            QueryKind::OrderBy(order) => {
                let ordered = self.ordered(order, slots(), wanted)?.into_iter();
                Ok(ordered.map(|(slot, value)| Ranked { order_value: Some(value), ..plain(slot, 1.0) }).collect())
            }
            QueryKind::Sample => {
                let chance = RandomState::new();
                let mut slots: Vec<u32> = slots().iter().collect();
                slots.sort_by_cached_key(|slot| chance.hash_one(slot));
                Ok(slots.into_iter().take(query.limit).map(|slot| plain(slot, 1.0)).collect())
            }
            QueryKind::Text(text) => {
                let field = self.collection.text_field.as_ref();
                let field = field.ok_or_else(|| Error::bad("a text query needs a collection with a text field"))?;
                if !query.using.is_empty() && query.using != field.to_string() {
                    let reason = format!("the words of '{}' have no index: a text query uses '{field}'", query.using);
                    return Err(Error::bad(reason));
                }
                let bits = allowed.as_ref().map(bits);
                let scope = Scope { limit: wanted, allowed: bits.as_deref(), ..Scope::default() };
                let hits = self.state().words(field, &self.reader)?.search(text, Bm25::default(), &scope);
                let is_wanted = |hit: &Hit| query.score_threshold.is_none_or(|threshold| hit.score > threshold);
                Ok(hits.into_iter().filter(is_wanted).map(Ranked::from).collect())
            }
            what => {
                let ranking = Ranking::new(self, &query.using, allowed)?.best(wanted, query);
                let hits = match what {
                    QueryKind::Nearest(example) => ranking.nearest(example),
                    QueryKind::Recommend { positive, negative, strategy } => {
                        ranking.recommended(positive, negative, *strategy)
                    }
                    QueryKind::Discover { target, context } => ranking.discovered(target, context),
                    QueryKind::Context(context) => ranking.in_context(context),
                    QueryKind::Feedback(feedback) => ranking.fed_back(feedback),
                    _ => Err(Error::bad("fusion needs prefetches")),
                };
                Ok(hits?.into_iter().map(Ranked::from).collect())
            }
        }
    }
}

fn fused(lists: &[Vec<Ranked>], fusion: &Fusion, query: &Query, wanted: usize) -> Result<Vec<Ranked>> {
    if lists.is_empty() {
        return Err(Error::bad("fusion needs prefetches"));
    }
    let pair = |ranked: &Ranked| (ranked.slot, ranked.score);
    let scores: Vec<Vec<(u32, f32)>> = lists.iter().map(|list| list.iter().map(pair).collect()).collect();
    let fused = match fusion {
        Fusion::Dbsf => fuse_dbsf(&scores, wanted),
        Fusion::Rrf { weights, .. } if !weights.is_empty() && weights.len() != lists.len() => {
            return Err(Error::bad(format!("{} weights for {} prefetches", weights.len(), lists.len())));
        }
        Fusion::Rrf { k, weights } => {
            let weights = weights.iter().map(|weight| f64::from(*weight)).collect();
            fuse_rrf(&scores, &Rrf { k: f64::from(*k), weights }, wanted)
        }
    };
    let is_wanted = |(_, score): &(u32, f32)| query.score_threshold.is_none_or(|threshold| *score >= threshold);
    Ok(fused.into_iter().filter(is_wanted).map(|(slot, score)| Hit { slot, score }.into()).collect())
}

/// Strings and integers name groups; a point with another value is in none.
fn group_ids(payload: &crate::Payload, request: &GroupQuery) -> Option<Vec<Value>> {
    let mut ids: Vec<Value> = Vec::new();
    let mut is_wrong = false;
    request.group_by.visit_flat(payload, &mut |value| {
        is_wrong = is_wrong || !(value.is_string() || value.is_i64() || value.is_u64());
        if !ids.contains(value) {
            ids.push(value.clone());
        }
    });
    (!is_wrong && !ids.is_empty()).then_some(ids)
}

fn raise_limits(query: &mut Query, limit: usize) {
    query.limit = query.limit.max(limit);
    query.prefetch.iter_mut().for_each(|prefetch| raise_limits(prefetch, limit));
}
