//! Searches rows: chooses how, by how many rows and queries there are. Changes nothing.

use super::best::Best;
use super::query::Query;
use super::rows::place;
use super::search::Search;
use super::{Found, Metric, Rows, ScanError, Wanted, bit_scan};
use crate::cpu::Cpu;

/// From this many rows on, a search that need not be exact reads signs.
const SIGNS_FROM: usize = 1_000_000;
/// Below this many rows the plain way is as fast.
const SCAN_FROM: usize = 256;

/// How a search is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// Score every allowed row.
    All,
    /// Bounds from bytes, then scores.
    Bytes,
    /// Estimates from signs, then scores.
    Signs,
}

impl Rows {
    /// The best rows for each of the queries, which lie end to end. Best first, ties by the lower slot; fewer than `k` only
    /// where no more rows are allowed and reach the threshold.
    pub fn top(&self, cpu: &Cpu, queries: &[f32], wanted: &Wanted<'_>) -> Result<Vec<Vec<Found>>, ScanError> {
        self.top_by(cpu, queries, wanted, plan)
    }

    /// The best of these slots, exact; those without a row are left out.
    pub fn rank(&self, cpu: &Cpu, query: &[f32], slots: &[u32], k: usize) -> Result<Vec<Found>, ScanError> {
        let dims = self.layout.dims;
        if query.len() != dims {
            return Err(ScanError::Dims { got: query.len(), dims });
        }
        let queries = [Query::new(query, self.metric, cpu.path())?];
        let search = Search { rows: self, cpu, queries: &queries, wanted: &Wanted::best(k) };
        let (mut best, mut space) = (Best::new(k), search.space());
        for &slot in slots.iter().filter(|slot| self.has(**slot)) {
            let (chunk, row) = place(slot);
            best.offer(search.score(0, chunk, row, &mut space));
        }
        Ok(found(best, None))
    }

    /// Whether a search that need not be exact may miss some of the best.
    pub fn may_miss(&self) -> bool {
        self.len() >= SIGNS_FROM
    }

    #[cfg(test)]
    pub(super) fn top_by_signs(
        &self,
        cpu: &Cpu,
        queries: &[f32],
        wanted: &Wanted<'_>,
    ) -> Result<Vec<Vec<Found>>, ScanError> {
        self.top_by(cpu, queries, wanted, |_| Plan::Signs)
    }

    fn top_by(
        &self,
        cpu: &Cpu,
        queries: &[f32],
        wanted: &Wanted<'_>,
        plan: impl Fn(&Search<'_>) -> Plan,
    ) -> Result<Vec<Vec<Found>>, ScanError> {
        let dims = self.layout.dims;
        if !queries.len().is_multiple_of(dims) {
            return Err(ScanError::Dims { got: queries.len(), dims });
        }
        let queries = queries.chunks_exact(dims).map(|query| Query::new(query, self.metric, cpu.path()));
        let queries: Vec<Query> = queries.collect::<Result<_, _>>()?;
        if wanted.k == 0 || queries.is_empty() || self.is_empty() {
            return Ok(vec![Vec::new(); queries.len()]);
        }
        let search = Search { rows: self, cpu, queries: &queries, wanted };
        let best = match (plan(&search), &self.sketcher) {
            (Plan::Signs, Some(sketcher)) => search.scan_signs(sketcher),
            (Plan::Bytes | Plan::Signs, _) => search.scan_bytes(),
            (Plan::All, _) => search.score_all(&Vec::from_iter(0..queries.len())),
        };
        Ok(best.into_iter().map(|best| found(best, wanted.threshold)).collect())
    }
}

fn found(best: Best, threshold: Option<f32>) -> Vec<Found> {
    let rows = best.into_sorted().into_iter().map(|row| Found { slot: row.slot, score: row.score as f32 });
    rows.take_while(|row| threshold.is_none_or(|threshold| row.score >= threshold)).collect()
}

fn plan(search: &Search<'_>) -> Plan {
    let (rows, queries, wanted) = (search.rows, search.queries.len(), search.wanted);
    let count = search.count();
    let by_signs = !wanted.exact && rows.may_miss() && queries <= bit_scan::QUERIES_MAX;
    // Costs of a row in nanoseconds: scored by its numbers, and scanned.
    let (scored, scanned) = (100 + 100 * queries, if by_signs { 2 * queries } else { 12 + queries });
    let is_few = count * scored < rows.len() * scanned;
    if rows.metric == Metric::Manhattan || count < SCAN_FROM || wanted.k > count / 4 || is_few {
        Plan::All
    } else if by_signs {
        Plan::Signs
    } else {
        Plan::Bytes
    }
}
