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

const LOADS: [f64; 5] = [30.0, 50.0, 70.0, 90.0, 110.0];
const SEEDS: u64 = 5;
const REQUESTS: usize = 10_000;
const TEXTS_MAX: u32 = 32;
const TOKENS: (u64, u64) = (16, 256);

/// The faster device: a middling encoder on a middling GPU.
const FAST: Cost = Cost { fixed_us: 500.0, token_us: 2.0, text_us: 10.0 };

/// What adding up the rows of a batch takes a group: 12 layers, twice each, 15 us.
const SUMS_US: f64 = 360.0;

/// Requests that arrive at once, to measure the makespan.
const HEAP: usize = 4_000;

const INTRODUCTION: &str = "\
# Weighted placement against round-robin

**Simulated.** Two to four devices, whose batches cost what a formula says, with 10 % noise; the decisions are those of the real scheduler, and every
step was checked against the simulator's rules. It compares ways of placing and says nothing of how fast a real device is.

```
cargo run --release -p magray-simulator -- placement --markdown docs/benchmarks/placement.md --plot docs/benchmarks/placement.svg
```

- The faster device needs 500 us a batch + 2 us a token + 10 us a text, the slower one 2, 4 or 10 times as long (or as long, at 1:1). *Two
  GPUs* have two slots each; of *GPU and CPU* the CPU is the slower one and has one slot. The scheduler is told none of this.
- *Groups* of GPUs that share each layer are one device to the scheduler: a group needs 500 us + 360 us for its sums (12 layers, twice 15 us) a
  batch, and a half (of two GPUs) or a fourth (of four) of the time of a GPU for tokens and texts; a group of slower GPUs needs all of a slower GPU's time but for the sums. The engine makes groups of one size
  only, so that a group stands beside others or beside the CPU, which is 10 times slower than one of its GPUs here. *Three unequal GPUs* are each half as fast as
  the one before; of *four GPUs of two kinds* two are slower. No group was timed: its costs are made up.
- Requests of one text of 16 to 256 tokens, all magnitudes alike, come independently of each other; batches have 32 texts at most, and 4,096
  requests may wait. A load of 100 % is what all devices can do together with full batches. 10,000 requests a run, five seeds,
  mean ± standard deviation between seeds. The first tenth of answers is not counted.
- **Waiting**: from arrival until a device begins with the batch that answers. **Total**: from arrival to answer.
- **Imbalance**: the coefficient of variation (standard deviation / mean) of the times that the devices were busy. 0: all worked alike;
  1: one of two did everything. With round-robin all get as many batches, so the slower ones are busy longer and the faster ones idle.
- Where one device is much faster and the load is low, the weighted placement leaves the slower one idle on purpose: a text is done sooner by
  waiting for the faster one. Its imbalance is then near 1, and waiting is lowest. Balance counts where both devices are needed.

![mean waiting over load](placement.svg)
";

/// Devices that work beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fleet {
    Gpus,
    GpuAndCpu,
    Groups,
    GroupAndCpu,
    ThreeGpus,
    FourGpus,
}

impl Fleet {
    const ALL: [Self; 6] =
        [Self::Gpus, Self::GpuAndCpu, Self::Groups, Self::GroupAndCpu, Self::ThreeGpus, Self::FourGpus];

    fn name(self) -> &'static str {
        match self {
            Self::Gpus => "two GPUs",
            Self::GpuAndCpu => "GPU and CPU",
            Self::Groups => "two groups of two GPUs",
            Self::GroupAndCpu => "group of four GPUs and CPU",
            Self::ThreeGpus => "three unequal GPUs",
            Self::FourGpus => "four GPUs of two kinds",
        }
    }

    /// How many times slower the slower ones are.
    fn ratios(self) -> &'static [f64] {
        match self {
            Self::Gpus | Self::GpuAndCpu => &[1.0, 2.0, 4.0, 10.0],
            Self::Groups => &[1.0, 2.0, 4.0],
            Self::GroupAndCpu => &[10.0],
            Self::ThreeGpus => &[2.0],
            Self::FourGpus => &[2.0, 4.0],
        }
    }

    /// All pairs of devices and speeds.
    fn cases() -> impl Iterator<Item = (Self, f64)> {
        Self::ALL.into_iter().flat_map(|fleet| fleet.ratios().iter().map(move |ratio| (fleet, *ratio)))
    }

    fn speeds(self, ratio: f64) -> String {
        match self {
            Self::Gpus | Self::GpuAndCpu | Self::Groups => format!("1:{ratio}"),
            Self::GroupAndCpu => format!("1:{ratio} to one of its GPUs"),
            Self::ThreeGpus => format!("1:{ratio}:{}", ratio * ratio),
            Self::FourGpus => format!("1:1:{ratio}:{ratio}"),
        }
    }

    /// The devices, the slower ones `ratio` times slower, and which of them count.
    fn devices(self, ratio: f64) -> (Vec<Device>, Vec<usize>) {
        let device = |kind, cost: Cost| {
            let slots = if kind == DeviceKind::Gpu { 2 } else { 1 };
            Device::unlimited(kind, slots, 16_384, cost)
        };
        let cpu = |ratio: f64| device(DeviceKind::Cpu, FAST.slower(ratio));
        let gpus: Vec<Cost> = match self {
            Self::Gpus => vec![FAST, FAST.slower(ratio)],
            Self::GpuAndCpu => vec![FAST],
            Self::Groups => vec![group(2, FAST), group(2, FAST.slower(ratio))],
            Self::GroupAndCpu => vec![group(4, FAST)],
            Self::ThreeGpus => vec![FAST, FAST.slower(ratio), FAST.slower(ratio * ratio)],
            Self::FourGpus => vec![FAST, FAST, FAST.slower(ratio), FAST.slower(ratio)],
        };
        let gpus = gpus.into_iter().map(|cost| device(DeviceKind::Gpu, cost));
        // There is always a CPU; with several GPUs nothing may be computed on it.
        let has_cpu = self.allowed() == Allowed::Any;
        let devices: Vec<Device> = std::iter::once(cpu(if has_cpu { ratio } else { 1.0 })).chain(gpus).collect();
        let counted = (usize::from(!has_cpu)..devices.len()).collect();
        (devices, counted)
    }

    fn allowed(self) -> Allowed {
        match self {
            Self::GpuAndCpu | Self::GroupAndCpu => Allowed::Any,
            Self::Gpus | Self::Groups | Self::ThreeGpus | Self::FourGpus => Allowed::Gpu,
        }
    }
}

/// What GPUs of one kind cost that share each layer: a part of the work each, and the sums of a batch.
fn group(ranks: u32, one: Cost) -> Cost {
    let ranks = f64::from(ranks);
    Cost { fixed_us: one.fixed_us + SUMS_US, token_us: one.token_us / ranks, text_us: one.text_us / ranks }
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
    fleet: Fleet,
    ratio: f64,
    pressure: Pressure,
    placement: Placement,
    seed: u64,
}

/// Both placements under one load, over all seeds.
struct Comparison {
    fleet: Fleet,
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
    for (fleet, ratio) in Fleet::cases() {
        for pressure in LOADS.map(Pressure::Load).into_iter().chain([Pressure::Heap]) {
            for placement in [Placement::Weighted, Placement::RoundRobin] {
                cases.extend((0..SEEDS).map(|seed| Case { fleet, ratio, pressure, placement, seed }));
            }
        }
    }
    let figures = run_all(&cases, |case| {
        let measured = try_scenario(scenario(case))?;
        Ok(Figures::of(&measured, &case.fleet.devices(case.ratio).1))
    })?;
    let both = 2 * SEEDS as usize;
    let comparison = |(cases, figures): (&[Case], &[Figures])| {
        let (weighted, round_robin) = figures.split_at(SEEDS as usize);
        let Case { fleet, ratio, pressure, .. } = cases[0];
        Comparison { fleet, ratio, pressure, weighted: Summary::of(weighted), round_robin: Summary::of(round_robin) }
    };
    Ok(cases.chunks(both).zip(figures.chunks(both)).map(comparison).collect())
}

fn scenario(case: &Case) -> Scenario {
    let (devices, counted) = case.fleet.devices(case.ratio);
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
    let shape = Shape { allowed: case.fleet.allowed(), ..Shape::plain((1, 1), TOKENS) };
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
    let rows: Vec<_> = Fleet::cases().map(|(fleet, ratio)| short_row(comparisons, fleet, ratio)).collect();
    let head =
        ["devices", "speeds", "waiting less by, at least", "imbalance", "less by", "done with the heap, ms", "less by"];
    text += &page::table(&head, &rows);
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
    for (fleet, ratio) in Fleet::cases() {
        let rows: Vec<Vec<String>> = of(comparisons, fleet, ratio).filter_map(row).collect();
        text += &format!("\n## {}, {}\n\n", capitalised(fleet.name()), fleet.speeds(ratio));
        text += &page::table(&head, &rows);
    }
    text
}

fn of(comparisons: &[Comparison], fleet: Fleet, ratio: f64) -> impl Iterator<Item = &Comparison> {
    comparisons.iter().filter(move |comparison| comparison.fleet == fleet && comparison.ratio == ratio)
}

fn short_row(comparisons: &[Comparison], fleet: Fleet, ratio: f64) -> Vec<String> {
    let is_stream = |comparison: &&Comparison| comparison.pressure != Pressure::Heap;
    let streams = || of(comparisons, fleet, ratio).filter(is_stream);
    let ratios = streams().map(|c| c.weighted.wait_mean.mean / c.round_robin.wait_mean.mean);
    let imbalance = |summary: fn(&Comparison) -> &Summary| {
        Spread::of(streams().map(|comparison| summary(comparison).imbalance.mean)).mean
    };
    let (weighted, round_robin) = (imbalance(|c| &c.weighted), imbalance(|c| &c.round_robin));
    let heap = of(comparisons, fleet, ratio).find(|comparison| comparison.pressure == Pressure::Heap);
    let makespans = heap.map(|heap| (heap.weighted.makespan_ms.mean, heap.round_robin.makespan_ms.mean));
    let (heap_weighted, heap_round_robin) = makespans.unwrap_or_default();
    vec![
        fleet.name().to_owned(),
        fleet.speeds(ratio),
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
    for (fleet, ratio) in Fleet::cases() {
        let points = |figure: fn(&Comparison) -> &Summary| -> Vec<(f64, f64)> {
            let point = |comparison: &Comparison| match comparison.pressure {
                Pressure::Load(load) => Some((load, figure(comparison).wait_mean.mean)),
                Pressure::Heap => None,
            };
            of(comparisons, fleet, ratio).filter_map(point).collect()
        };
        panels.push(Panel {
            title: format!("{}, {}: mean waiting, ms", fleet.name(), fleet.speeds(ratio)),
            lines: vec![
                Line { name: "weighted", colour: "#0072b2", points: points(|c| &c.weighted) },
                Line { name: "round-robin", colour: "#d55e00", points: points(|c| &c.round_robin) },
            ],
        });
    }
    let frame = Frame {
        title: "Waiting by load: weighted placement and round-robin",
        x: "load, % of capacity",
        columns: 4,
        ticks: LOADS.iter().map(|load| format!("{load:.0}")).collect(),
    };
    draw(&frame, &panels)
}
