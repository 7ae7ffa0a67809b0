//! `magray-bench collection`: how fast points are stored, how soon a folder is open again, what a filter costs.
//! Makes its points up and deletes its folder at the end; Linux tells the memory.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Instant};

use clap::Args;
use magray_index::{
    Collection, CollectionConfig, Collections, Distance, Example, Filter, Options, Payload, Point, PointId, Query,
    QueryKind, Vector,
};
use serde::Serialize;
use serde_json::json;

use crate::{failure::Failure, flags::seconds, terminal};

const EXAMPLES: &str = "\
Examples:
  magray-bench collection                        a million points of 384 dimensions
  magray-bench collection --points 100000 --exact --json

The time of an import has the making of the points in it. Filters are on a number of the payload; searches with and without \
one take turns, and the ratio is that of their medians.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CollectionArgs {
    /// Random points
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    points: u64,
    /// Dimensions of their vectors
    #[arg(long, value_name = "N", default_value_t = 384, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    dims: u32,
    /// Points of a change
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    batch: u64,
    /// Points that are changed one by one
    #[arg(long, value_name = "N", default_value_t = 300)]
    single: u64,
    /// Never trade recall for time
    #[arg(long)]
    exact: bool,
    /// How long each filter is measured
    #[arg(long, value_name = "S", default_value_t = 4.0, value_parser = seconds)]
    seconds: f64,
    /// Where the folder is made [default: the system's folder for temporary files]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What was measured; the names are those of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    points: u64,
    import_s: f64,
    import_peak_mib: Option<u64>,
    disk_mib: u64,
    single_per_s: f64,
    /// The folder is open, and so are its collections.
    open_s: f64,
    /// All ids are read: points can be changed.
    ids_s: f64,
    /// The first search: all vectors are read.
    first_search_s: f64,
    /// The first filter on a field: all payloads are read.
    first_filter_s: f64,
    filters: Vec<Filtered>,
    memory_mib: usize,
    peak_mib: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Filtered {
    /// Points in a thousand that meet the filter.
    per_mille: u64,
    unfiltered_ms: f64,
    filtered_ms: f64,
    ratio: f64,
}

const PER_MILLE: [u64; 6] = [1, 10, 100, 500, 900, 1000];
const K: usize = 10;

pub(crate) fn run(args: &CollectionArgs) -> Result<(), Failure> {
    let folder = args.folder.clone().unwrap_or_else(std::env::temp_dir);
    let folder = folder.join(format!("magray-bench-collection-{}", std::process::id()));
    let measured = Bench { args, folder: folder.clone() }.measure();
    let _ = fs::remove_dir_all(folder);
    let report = measured.map_err(|error| Failure::Broken(error.to_string()))?;
    if args.json { terminal::print_json(&report) } else { terminal::print(&report.table()) }
}

struct Bench<'a> {
    args: &'a CollectionArgs,
    folder: PathBuf,
}

impl Bench<'_> {
    fn measure(&self) -> magray_index::Result<Report> {
        let (points, began) = (self.args.points, Instant::now());
        let collections = Collections::open(&self.folder, Options::default())?;
        collections.create("c", CollectionConfig::dense(self.args.dims as usize, Distance::Cosine))?;
        let collection = collections.get("c")?;
        for first in (0..points).step_by(self.args.batch as usize) {
            let ids = first..points.min(first + self.args.batch);
            collection.upsert(ids.map(|id| self.point(id)).collect())?;
        }
        let (import_s, import_peak_mib) = (seconds_since(began), peak_mib());
        let began = Instant::now();
        (0..self.args.single).try_for_each(|id| collection.upsert(vec![self.point(id)]))?;
        let single_per_s = self.args.single as f64 / seconds_since(began);
        let disk_mib = collection.info()?.disk_bytes >> 20;
        drop((collection, collections));

        let began = Instant::now();
        let collections = Collections::open(&self.folder, Options::default())?;
        let collection = collections.get("c")?;
        let open_s = seconds_since(began);
        let count = collection.count(None)?;
        let ids_s = seconds_since(began);
        if count as u64 != points {
            return Err(magray_index::Error::Store(format!("{count} of {points} points are there")));
        }
        let began = Instant::now();
        self.search(&collection, 0, None)?;
        let first_search_s = seconds_since(began);
        let began = Instant::now();
        collection.count(Some(&below(1)))?;
        let first_filter_s = seconds_since(began);
        let filters = PER_MILLE.iter().map(|per_mille| self.filtered(&collection, *per_mille));
        Ok(Report {
            points,
            import_s,
            import_peak_mib,
            disk_mib,
            single_per_s,
            open_s,
            ids_s,
            first_search_s,
            first_filter_s,
            filters: filters.collect::<magray_index::Result<_>>()?,
            memory_mib: collection.info()?.memory_bytes >> 20,
            peak_mib: peak_mib(),
        })
    }

    fn filtered(&self, collection: &Collection, per_mille: u64) -> magray_index::Result<Filtered> {
        let (filter, began) = (below(per_mille), Instant::now());
        let (mut plain, mut filtered) = (Vec::new(), Vec::new());
        let mut query = 0;
        while seconds_since(began) < self.args.seconds || plain.len() < 5 {
            query += 1;
            plain.push(self.search(collection, query, None)?);
            filtered.push(self.search(collection, query, Some(&filter))?);
        }
        let (unfiltered_ms, filtered_ms) = (median(plain), median(filtered));
        Ok(Filtered { per_mille, unfiltered_ms, filtered_ms, ratio: filtered_ms / unfiltered_ms })
    }

    /// Milliseconds of one search. Finds as many as are wanted where there are as many.
    fn search(&self, collection: &Collection, seed: u64, filter: Option<&Filter>) -> magray_index::Result<f64> {
        let nearest = QueryKind::Nearest(Example::Vector(self.vector(seed.wrapping_add(1 << 40))));
        let query = Query { filter: filter.cloned(), exact: self.args.exact, ..Query::new(nearest, K) };
        let began = Instant::now();
        let found = collection.query(&query)?.len();
        let ms = seconds_since(began) * 1e3;
        let there = filter.map_or(Ok(K), |filter| collection.count(Some(filter)))?;
        if found != there.min(K) {
            return Err(magray_index::Error::Store(format!("{found} found where {there} are")));
        }
        Ok(ms)
    }

    fn point(&self, id: u64) -> Point {
        let payload: Payload = [("n", json!(id % 1000)), ("text", json!(format!("document {id}")))]
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        Point { id: PointId::Number(id), vectors: BTreeMap::from([(String::new(), self.vector(id))]), payload }
    }

    fn vector(&self, seed: u64) -> Vector {
        let mut bits = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let number = |_| {
            bits ^= bits << 13;
            bits ^= bits >> 7;
            bits ^= bits << 17;
            (bits >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        Vector::Dense((0..self.args.dims).map(number).collect())
    }
}

impl Report {
    fn table(&self) -> String {
        let mib = |mib: Option<u64>| mib.map_or("-".to_owned(), |mib| format!("{mib} MiB"));
        let line = |what: &str, value: String| vec![what.to_owned(), value];
        let mut rows = vec![
            line("import", format!("{:.1} s, peak {}", self.import_s, mib(self.import_peak_mib))),
            line("on disk", format!("{} MiB", self.disk_mib)),
            line("single changes", format!("{:.0} /s", self.single_per_s)),
            line("open", format!("{:.3} s", self.open_s)),
            line("ids read", format!("{:.3} s after that began", self.ids_s)),
            line("first search", format!("{:.2} s", self.first_search_s)),
            line("first filter", format!("{:.2} s", self.first_filter_s)),
        ];
        for Filtered { per_mille, unfiltered_ms, filtered_ms, ratio } in &self.filters {
            let what = format!("filter, {} %", *per_mille as f64 / 10.0);
            rows.push(line(&what, format!("{filtered_ms:.2} ms, without {unfiltered_ms:.2} ms: {ratio:.2}")));
        }
        rows.push(line("memory", format!("{} MiB of indexes, peak {}", self.memory_mib, mib(self.peak_mib))));
        format!("{} points\n{}", self.points, terminal::aligned(&rows))
    }
}

fn below(per_mille: u64) -> Filter {
    let filter = json!({"must": [{"key": "n", "range": {"lt": per_mille}}]});
    Filter::from_json(&filter).unwrap_or_else(|error| unreachable!("{error}"))
}

fn seconds_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The most memory that this process has had.
fn peak_mib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? >> 10)
}
