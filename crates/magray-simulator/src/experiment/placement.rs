//! Weighted placement against round-robin, on devices of different speeds and under different loads.
//! Simulated: both place the same requests on the same devices.

use super::figures::{Figures, Spread};
use super::plot::{Frame, Line, Panel, draw};
use super::{ExperimentError, Output, page, run_all, write};
use crate::load::{Arrivals, Load, Shape};
use crate::scenario::{Cost, Device, Scenario};
use crate::trial::try_scenario;
use magray_core::schedule::{Allowed, Batching, DeviceKind, Limits, Options, Placement};
use std::time::Duration;

const RATIOS: [f64; 4] = [1.0, 2.0, 4.0, 10.0];
const LOADS: [f64; 5] = [30.0, 50.0, 70.0, 90.0, 110.0];
const SEEDS: u64 = 5;
const REQUESTS: usize = 10_000;
const TEXTS_MAX: u32 = 32;
const TOKENS: (u64, u64) = (16, 256);

/// The faster device: a middling encoder on a middling GPU.
const FAST: Cost = Cost { fixed_us: 500.0, token_us: 2.0, text_us: 10.0 };

/// Requests that arrive at once, to measure the makespan.
const HEAP: usize = 4_000;

const INTRODUCTION: &str = "\
# Weighted placement against round-robin

**Simulated.** Two devices, whose batches cost what a formula says, with 10 % noise; the decisions are those of the real scheduler, and every
step was checked against the simulator's rules. It compares ways of placing and says nothing of how fast a real device is.

```
cargo run --release -p magray-simulator -- placement --markdown docs/benchmarks/placement.md --plot docs/benchmarks/placement.svg
```

- The faster device needs 500 us a batch + 2 us a token + 10 us a text, the slower one 2, 4 or 10 times as long (or as long, at 1:1). *Two
  GPUs* have two slots each; of *GPU and CPU* the CPU is the slower one and has one slot. The scheduler is told none of this.
- Requests of one text of 16 to 256 tokens, all magnitudes alike, come independently of each other; batches have 32 texts at most, and 4,096
  requests may wait. A load of 100 % is what both devices can do together with full batches. 10,000 requests a run, five seeds,
  mean ± standard deviation between seeds. The first tenth of answers is not counted.
- **Waiting**: from arrival until a device begins with the batch that answers. **Total**: from arrival to answer.
- **Imbalance**: the coefficient of variation (standard deviation / mean) of the times that the devices were busy. 0: all worked alike;
  1: one of two did everything. With round-robin both get as many batches, so the slower one is busy longer and the faster one idles.
- Where one device is much faster and the load is low, the weighted placement leaves the slower one idle on purpose: a text is done sooner by
  waiting for the faster one. Its imbalance is then near 1, and waiting is lowest. Balance counts where both devices are needed.

![mean waiting over load](placement.svg)
";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pair {
    Gpus,
    GpuAndCpu,
}

impl Pair {
    const ALL: [Self; 2] = [Self::Gpus, Self::GpuAndCpu];

    fn name(self) -> &'static str {
        match self {
            Self::Gpus => "two GPUs",
            Self::GpuAndCpu => "GPU and CPU",
        }
    }

    /// The devices, the slower one `ratio` times slower, and which of them count.
    fn devices(self, ratio: f64) -> (Vec<Device>, Vec<usize>) {
        let device = |kind, ratio: f64| {
            let slots = if kind == DeviceKind::Gpu { 2 } else { 1 };
            Device::unlimited(kind, slots, 16_384, FAST.slower(ratio))
        };
        match self {
            // There is always a CPU; here nothing may be computed on it.
            Self::Gpus => {
                let gpu = |ratio| device(DeviceKind::Gpu, ratio);
                (vec![device(DeviceKind::Cpu, 1.0), gpu(1.0), gpu(ratio)], vec![1, 2])
            }
            Self::GpuAndCpu => (vec![device(DeviceKind::Cpu, ratio), device(DeviceKind::Gpu, 1.0)], vec![0, 1]),
        }
    }

    fn allowed(self) -> Allowed {
        match self {
            Self::Gpus => Allowed::Gpu,
            Self::GpuAndCpu => Allowed::Any,
        }
    }
}

/// The load.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pressure {
    /// A stream of this percent of what both devices can do together.
    Load(f64),
    /// All requests at once.
    Heap,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    pair: Pair,
    ratio: f64,
    pressure: Pressure,
    placement: Placement,
    seed: u64,
}

/// Both placements under one load, over all seeds.
struct Comparison {
    pair: Pair,
    ratio: f64,
    pressure: Pressure,
    weighted: Summary,
    round_robin: Summary,
}

struct Summary {
    wait_mean: Spread,
    wait_p99: Spread,
    total_p99: Spread,
    imbalance: Spread,
    texts_per_s: Spread,
    refused: Spread,
    makespan_ms: Spread,
}

/// Runs the experiment; returns the page.
pub fn placement(output: &Output) -> Result<String, ExperimentError> {
    let comparisons = compare()?;
    let page = write_page(&comparisons, output);
    write(&output.markdown, &page)?;
    write(&output.plot, &plot(&comparisons))?;
    Ok(page)
}

fn compare() -> Result<Vec<Comparison>, ExperimentError> {
    let mut cases = Vec::new();
    for pair in Pair::ALL {
        for ratio in RATIOS {
            for pressure in LOADS.map(Pressure::Load).into_iter().chain([Pressure::Heap]) {
                for placement in [Placement::Weighted, Placement::RoundRobin] {
                    cases.extend((0..SEEDS).map(|seed| Case { pair, ratio, pressure, placement, seed }));
                }
            }
        }
    }
    let figures = run_all(&cases, |case| {
        let measured = try_scenario(scenario(case))?;
        Ok(Figures::of(&measured, &case.pair.devices(case.ratio).1))
    })?;
    let both = 2 * SEEDS as usize;
    let comparison = |(cases, figures): (&[Case], &[Figures])| {
        let (weighted, round_robin) = figures.split_at(SEEDS as usize);
        let Case { pair, ratio, pressure, .. } = cases[0];
        Comparison { pair, ratio, pressure, weighted: Summary::of(weighted), round_robin: Summary::of(round_robin) }
    };
    Ok(cases.chunks(both).zip(figures.chunks(both)).map(comparison).collect())
}

fn scenario(case: &Case) -> Scenario {
    let (devices, counted) = case.pair.devices(case.ratio);
    // What a device can do at most: full batches of middling texts.
    let mean_tokens = (TOKENS.1 - TOKENS.0) as f64 / (TOKENS.1 as f64 / TOKENS.0 as f64).ln();
    let full = |cost: Cost| cost.of((mean_tokens * f64::from(TEXTS_MAX)) as u64, u64::from(TEXTS_MAX)).as_secs_f64();
    let texts_per_s: f64 = counted.iter().map(|at| f64::from(TEXTS_MAX) / full(devices[*at].cost)).sum();
    let (requests, arrivals) = match case.pressure {
        Pressure::Load(load) => {
            (REQUESTS, Arrivals::Stream { gap: Duration::from_secs_f64(100.0 / load / texts_per_s) })
        }
        Pressure::Heap => (HEAP, Arrivals::Bursts { size: HEAP, gap: Duration::ZERO }),
    };
    let shape = Shape { allowed: case.pair.allowed(), ..Shape::plain((1, 1), TOKENS) };
    let options = Options {
        limits: Limits { requests_max: 4096, ..Limits::default() },
        batching: Batching { texts_max: TEXTS_MAX, ..Batching::default() },
        placement: case.placement,
        ..Options::default()
    };
    super::noisy(Scenario::without_faults(case.seed, devices, options, Load { requests, arrivals, shape }))
}

impl Summary {
    fn of(figures: &[Figures]) -> Self {
        let spread = |figure: fn(&Figures) -> f64| Spread::of(figures.iter().map(figure));
        Self {
            wait_mean: spread(|f| f.wait_mean),
            wait_p99: spread(|f| f.wait_p99),
            total_p99: spread(|f| f.total_p99),
            imbalance: spread(|f| f.imbalance),
            texts_per_s: spread(|f| f.texts_per_s),
            refused: spread(|f| f.refused),
            makespan_ms: spread(|f| f.makespan_ms),
        }
    }
}

fn write_page(comparisons: &[Comparison], output: &Output) -> String {
    let date = output.date.as_deref().unwrap_or("no date given");
    let mut text = format!("{INTRODUCTION}\nRun: {date}. In each cell: weighted / round-robin.\n");
    text += "\n## In short\n\nMeans over the five loads; the heap is 4,000 requests that come at once.\n\n";
    let mut rows = Vec::new();
    for pair in Pair::ALL {
        rows.extend(RATIOS.map(|ratio| short_row(comparisons, pair, ratio)));
    }
    let head =
        ["devices", "speeds", "waiting less by, at least", "imbalance", "less by", "done with the heap, ms", "less by"];
    text += &page::table(&head, &rows);
    for pair in Pair::ALL {
        for ratio in RATIOS {
            let rows: Vec<Vec<String>> = of(comparisons, pair, ratio).filter_map(row).collect();
            text += &format!("\n## {}, 1:{ratio}\n\n", capitalised(pair.name()));
            let head = [
                "load, %",
                "waiting mean, ms",
                "less by",
                "waiting p99, ms",
                "total p99, ms",
                "imbalance",
                "less by",
                "texts/s",
                "refused, %",
            ];
            text += &page::table(&head, &rows);
        }
    }
    text
}

fn of(comparisons: &[Comparison], pair: Pair, ratio: f64) -> impl Iterator<Item = &Comparison> {
    comparisons.iter().filter(move |comparison| comparison.pair == pair && comparison.ratio == ratio)
}

fn short_row(comparisons: &[Comparison], pair: Pair, ratio: f64) -> Vec<String> {
    let is_stream = |comparison: &&Comparison| comparison.pressure != Pressure::Heap;
    let streams = || of(comparisons, pair, ratio).filter(is_stream);
    let ratios = streams().map(|c| c.weighted.wait_mean.mean / c.round_robin.wait_mean.mean);
    let imbalance = |summary: fn(&Comparison) -> &Summary| {
        Spread::of(streams().map(|comparison| summary(comparison).imbalance.mean)).mean
    };
    let (weighted, round_robin) = (imbalance(|c| &c.weighted), imbalance(|c| &c.round_robin));
    let heap = of(comparisons, pair, ratio).find(|comparison| comparison.pressure == Pressure::Heap);
    let makespans = heap.map(|heap| (heap.weighted.makespan_ms.mean, heap.round_robin.makespan_ms.mean));
    let (heap_weighted, heap_round_robin) = makespans.unwrap_or_default();
    vec![
        pair.name().to_owned(),
        format!("1:{ratio}"),
        page::less(ratios.fold(0.0, f64::max), 1.0),
        format!("{} / {}", page::short(weighted), page::short(round_robin)),
        page::less(weighted, round_robin),
        format!("{} / {}", page::short(heap_weighted), page::short(heap_round_robin)),
        page::less(heap_weighted, heap_round_robin),
    ]
}

fn row(comparison: &Comparison) -> Option<Vec<String>> {
    let Comparison { weighted, round_robin, .. } = comparison;
    let Pressure::Load(load) = comparison.pressure else { return None };
    let both = |figure: fn(&Summary) -> Spread| {
        format!("{} / {}", page::with_spread(figure(weighted)), page::with_spread(figure(round_robin)))
    };
    let means = |figure: fn(&Summary) -> Spread| {
        format!("{} / {}", page::short(figure(weighted).mean), page::short(figure(round_robin).mean))
    };
    Some(vec![
        format!("{load:.0}"),
        both(|summary| summary.wait_mean),
        page::less(weighted.wait_mean.mean, round_robin.wait_mean.mean),
        means(|summary| summary.wait_p99),
        means(|summary| summary.total_p99),
        both(|summary| summary.imbalance),
        page::less(weighted.imbalance.mean, round_robin.imbalance.mean),
        means(|summary| summary.texts_per_s),
        format!("{:.1} / {:.1}", weighted.refused.mean * 100.0, round_robin.refused.mean * 100.0),
    ])
}

fn capitalised(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn plot(comparisons: &[Comparison]) -> String {
    let mut panels = Vec::new();
    for pair in Pair::ALL {
        for ratio in RATIOS {
            let points = |figure: fn(&Comparison) -> &Summary| -> Vec<(f64, f64)> {
                let point = |comparison: &Comparison| match comparison.pressure {
                    Pressure::Load(load) => Some((load, figure(comparison).wait_mean.mean)),
                    Pressure::Heap => None,
                };
                of(comparisons, pair, ratio).filter_map(point).collect()
            };
            panels.push(Panel {
                title: format!("{}, 1:{ratio}: mean waiting, ms", pair.name()),
                lines: vec![
                    Line { name: "weighted", colour: "#0072b2", points: points(|c| &c.weighted) },
                    Line { name: "round-robin", colour: "#d55e00", points: points(|c| &c.round_robin) },
                ],
            });
        }
    }
    let frame = Frame {
        title: "Waiting by load: weighted placement and round-robin",
        x: "load, % of capacity",
        columns: 4,
        ticks: LOADS.iter().map(|load| format!("{load:.0}")).collect(),
    };
    draw(&frame, &panels)
}
