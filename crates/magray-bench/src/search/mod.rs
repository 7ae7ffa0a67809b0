//! `magray-bench search`: how fast the best rows are found among many vectors, and how many of them are found.
//! Keeps nothing: vectors are made up, or read from files. Starts an engine only for a GPU.

mod gpu;
mod vectors;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use magray_device::{
    cpu::Cpu,
    scan::{Found, Metric, MirroredRows, RowsHost, Storage, Wanted},
};
use magray_engine::CpuPath;
use serde::Serialize;

use crate::{failure::Failure, flags::seconds, terminal};
use vectors::Vectors;

const EXAMPLES: &str = "\
Examples:
  magray-bench search                                   100,000 random rows of 384 dimensions
  magray-bench search --rows 1000000 --approximate      a million, also by signs
  magray-bench search --allow-one-in 2,10,100,1000      under filters that allow one row in 2, 10, 100, 1000
  magray-bench search --gpu --rows 1000000 --queries 1  on the GPU, as a collection is searched there
  magray-bench search --vectors rows.npy --query-vectors queries.npy --json

Each case is searched again and again with the next queries of those there are. The recall is the share of the exact best \
rows that an approximate search returns.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SearchArgs {
    /// Random rows
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    rows: u32,
    /// Their dimensions
    #[arg(long, value_name = "N", default_value_t = 384, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    dims: u32,
    /// Rows from this .npy file of 32-bit floats instead
    #[arg(long, value_name = "FILE", requires = "query_vectors")]
    vectors: Option<PathBuf>,
    /// Queries from this .npy file
    #[arg(long, value_name = "FILE", requires = "vectors")]
    query_vectors: Option<PathBuf>,
    /// Mixtures of two of the rows of the file each, this many, in their place
    #[arg(long, value_name = "N", requires = "vectors", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    mixtures: Option<u32>,
    /// Search on the GPU, one query at a time
    #[arg(long)]
    gpu: bool,
    /// Queries that are searched at once; several numbers make several cases
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,32",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    queries: Vec<u32>,
    /// Rows that are wanted
    #[arg(long, value_name = "K", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    k: u32,
    /// How rows are kept
    #[arg(long, value_enum, default_value_t = StorageFlag::F32)]
    storage: StorageFlag,
    /// How vectors are compared
    #[arg(long, value_enum, default_value_t = MetricFlag::Cosine)]
    metric: MetricFlag,
    /// Also search as a collection does that need not be exact
    #[arg(long)]
    approximate: bool,
    /// Also search with a filter that allows one row in N, by chance
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    allow_one_in: Vec<u32>,
    /// How long each case is measured
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// Threads that compute [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Instructions to use: portable, avx2, avx512 or amx [default: the best]
    #[arg(long, value_name = "PATH")]
    cpu_path: Option<CpuPath>,
    /// Print one JSON object a case
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StorageFlag {
    F32,
    F16,
    Int8,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MetricFlag {
    Cosine,
    Dot,
    Euclid,
    Manhattan,
}

/// What was measured; the names are those of `--json`.
#[derive(Debug, Serialize)]
struct Case {
    rows: usize,
    path: String,
    queries: usize,
    exact: bool,
    allowed: usize,
    median_ms: f64,
    fastest_ms: f64,
    /// Whether a GPU has found all that was timed.
    on_gpu: bool,
    /// Of an approximate search.
    recall: Option<f64>,
    /// The slots for each query there is; left out of the table.
    found: Vec<Vec<u32>>,
}

/// Queries whose answers are compared and told.
const ANSWERS: usize = 100;

pub(crate) fn run(args: &SearchArgs) -> Result<(), Failure> {
    let (rows, queries) = match (&args.vectors, &args.query_vectors) {
        (Some(rows), Some(queries)) => (Vectors::read(rows)?, Vectors::read(queries)?),
        _ => (Vectors::random(args.rows, args.dims, 1), Vectors::random(1000, args.dims, 2)),
    };
    let rows = match args.mixtures {
        Some(count) => rows.mixtures(count as usize),
        None => rows,
    };
    if rows.dims() != queries.dims() {
        let message = format!("rows have {} dimensions, queries {}: give files that fit", rows.dims(), queries.dims());
        return Err(Failure::Usage(message));
    }
    let cpu =
        Cpu::new(args.cpu_path, args.threads.map(usize::from)).map_err(|error| Failure::Usage(error.to_string()))?;
    let engine = args.gpu.then(gpu::start).transpose()?;
    let host = engine.as_ref().map(gpu::host).transpose()?;
    let bench = Bench { args, cpu, rows: args.empty(rows.dims(), host), queries };
    let began = Instant::now();
    let slots: Vec<u32> = (0..rows.count() as u32).collect();
    if let Some(slot) = bench.rows.set_all(&bench.cpu, &slots, rows.some(0, rows.count())).first() {
        return Err(Failure::Usage(format!("row {slot} cannot be searched: give rows of finite numbers")));
    }
    let took = began.elapsed();
    drop(rows);
    if args.gpu {
        bench.wait_for_copy()?;
    }
    bench.tell_all(took)
}

impl SearchArgs {
    fn empty(&self, dims: usize, host: Option<Arc<dyn RowsHost>>) -> MirroredRows {
        let storage = match self.storage {
            StorageFlag::F32 => Storage::F32,
            StorageFlag::F16 => Storage::F16,
            StorageFlag::Int8 => Storage::Int8,
        };
        let metric = match self.metric {
            MetricFlag::Cosine => Metric::Cosine,
            MetricFlag::Dot => Metric::Dot,
            MetricFlag::Euclid => Metric::Euclid,
            MetricFlag::Manhattan => Metric::Manhattan,
        };
        MirroredRows::new(dims, storage, metric, host)
    }
}

struct Bench<'a> {
    args: &'a SearchArgs,
    cpu: Cpu,
    rows: MirroredRows,
    queries: Vectors,
}

impl Bench<'_> {
    fn tell_all(&self, setting: Duration) -> Result<(), Failure> {
        let (rows, mib) = (self.rows.len(), self.rows.bytes() >> 20);
        if !self.args.json {
            let path = self.cpu.path();
            let set = format!("{rows} rows of {} dimensions, {mib} MiB, set in {setting:.1?}", self.queries.dims());
            terminal::print(&format!("{set}; {path}, {} threads\n", self.cpu.pool().threads()))?;
        }
        let filters = self.args.allow_one_in.iter().map(|&one_in| Some(vectors::one_in(rows, one_in)));
        for filter in std::iter::once(None).chain(filters) {
            for &queries in &self.args.queries {
                self.tell(queries as usize, true, filter.as_deref())?;
                if self.args.approximate {
                    self.tell(queries as usize, false, filter.as_deref())?;
                }
            }
        }
        Ok(())
    }

    /// Searches until the GPU does so.
    fn wait_for_copy(&self) -> Result<(), Failure> {
        let began = Instant::now();
        while !self.search(0, 1, &Wanted::best(self.args.k as usize))?.1 {
            if began.elapsed() > gpu::COPIED_WITHIN {
                return Err(Failure::Usage("the vectors did not come to the GPU: has it room for them?".to_owned()));
            }
        }
        Ok(())
    }

    fn tell(&self, queries: usize, exact: bool, allowed: Option<&[u64]>) -> Result<(), Failure> {
        let case = self.measure(queries, exact, allowed)?;
        if self.args.json {
            return terminal::print_json(&case);
        }
        let Case { allowed, median_ms, fastest_ms, on_gpu, .. } = case;
        let place = if on_gpu { "  GPU" } else { "" };
        let kind = if exact { "exact" } else { "approximate" };
        let recall = case.recall.map_or(String::new(), |recall| format!("  recall {recall:.4}"));
        terminal::print(&format!(
            "{queries:>5} queries  {kind:<11}  {allowed:>9} allowed  median {median_ms:>9.3} ms  fastest {fastest_ms:>9.3} ms{recall}{place}\n"
        ))
    }

    fn measure(&self, queries: usize, exact: bool, allowed: Option<&[u64]>) -> Result<Case, Failure> {
        let wanted = Wanted { allowed, exact, ..Wanted::best(self.args.k as usize) };
        let groups = (self.queries.count() / queries).max(1);
        let (mut times, mut on_gpu) = (Vec::new(), true);
        let began = Instant::now();
        self.search(0, queries, &wanted)?;
        while began.elapsed().as_secs_f64() < self.args.seconds || times.len() < 5 {
            let group = times.len() % groups;
            let start = Instant::now();
            on_gpu &= self.search(group * queries, queries, &wanted)?.1;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_unstable_by(f64::total_cmp);
        let found = self.answers(queries, &wanted)?;
        let recall =
            if exact { None } else { Some(recall(&found, &self.answers(queries, &Wanted { exact: true, ..wanted })?)) };
        Ok(Case {
            rows: self.rows.len(),
            path: self.cpu.path().to_string(),
            queries,
            exact,
            allowed: allowed.map_or(self.rows.len(), |bits| bits.iter().map(|word| word.count_ones() as usize).sum()),
            median_ms: times[times.len() / 2],
            fastest_ms: times[0],
            on_gpu,
            recall,
            found,
        })
    }

    /// The slots for the first queries, searched `queries` at once.
    fn answers(&self, queries: usize, wanted: &Wanted<'_>) -> Result<Vec<Vec<u32>>, Failure> {
        let mut all = Vec::new();
        for first in (0..self.queries.count().min(ANSWERS)).step_by(queries) {
            let (found, _) = self.search(first, queries.min(self.queries.count() - first), wanted)?;
            all.extend(found.iter().map(|found| found.iter().map(|row| row.slot).collect::<Vec<u32>>()));
        }
        all.truncate(ANSWERS);
        Ok(all)
    }

    /// Also says whether a GPU has found them.
    fn search(&self, first: usize, count: usize, wanted: &Wanted<'_>) -> Result<(Vec<Vec<Found>>, bool), Failure> {
        let found = self.rows.top(&self.cpu, self.queries.some(first, count), wanted);
        found.map_err(|error| Failure::Usage(format!("queries: {error}")))
    }
}

fn recall(found: &[Vec<u32>], best: &[Vec<u32>]) -> f64 {
    let both = |(found, best): (&Vec<u32>, &Vec<u32>)| best.iter().filter(|slot| found.contains(slot)).count();
    let hits: usize = found.iter().zip(best).map(both).sum();
    hits as f64 / best.iter().map(Vec::len).sum::<usize>().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recall_is_the_share_of_the_best() {
        assert_eq!(recall(&[vec![1, 2], vec![3]], &[vec![2, 5], vec![3]]), 2.0 / 3.0);
        assert_eq!(recall(&[vec![]], &[vec![]]), 0.0);
    }
}
