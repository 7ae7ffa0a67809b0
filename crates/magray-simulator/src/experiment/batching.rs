//! Adaptive batches against a sweep of fixed settings, at low, middle and saturating load.
//! Simulated: one device, with the costs of a GPU or of a CPU.

use super::figures::{Figures, Spread};
use super::plot::{Frame, Line, Panel, draw};
use super::{ExperimentError, Output, page, run_all, write};
use crate::load::{Arrivals, Load, Shape};
use crate::scenario::{Cost, Device, Scenario};
use crate::trial::try_scenario;
use magray_core::schedule::{Allowed, Batching, DeviceKind, Options, Sizing};
use std::time::Duration;

const TEXTS: [u32; 9] = [1, 4, 8, 16, 32, 64, 128, 256, 512];
const TIMEOUTS_MS: [u64; 5] = [0, 1, 2, 5, 10];
const SEEDS: u64 = 3;
const TOKENS: (u64, u64) = (8, 128);

/// Settings within this of each other are equal: two runs of one setting differ by as much.
const NOISE: f64 = 0.03;

const INTRODUCTION: &str = "\
# Adaptive batches against fixed ones

**Simulated.** One device, whose batches cost what a formula says, with 10 % noise; the decisions are those of the real scheduler. It
compares ways of forming batches and says nothing of how fast a real device is.

```
cargo run --release -p magray-simulator -- batching --markdown docs/benchmarks/batching.md --plot docs/benchmarks/batching.svg
```

- **GPU-like**: 110 us a batch + 52 ns a token + 1 us a text, two slots. **CPU-like**: 400 us a batch + 18 us a token, one slot.
- Requests of one text of 8 to 128 tokens, all magnitudes alike. *Low*: a stream of 5 % of what full batches (512 texts) could do.
  *Middle*: 50 %. *Saturating*: 1,024 clients, each of which asks again at once after its answer.
- Fixed settings: a batch waits for a number of texts (1, 4, 8, 16, 32, 64, 128, 256 or 512), but not longer than 0, 1, 2, 5 or 10 ms: 45 of them.
- A stream has the throughput of its arrivals, whatever the setting, as long as it keeps up; so the best fixed setting of a stream is the
  one with the lowest p99 of those that keep up, and of saturating load the one with the highest throughput. Times are from arrival to
  answer, in ms. Three seeds each; the first tenth of answers is not counted.
- \"At least equal\" allows for 3 % of noise.

![p99 over load](batching.svg)
";

/// Whose costs the device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Like {
    Gpu,
    Cpu,
}

impl Like {
    const ALL: [Self; 2] = [Self::Gpu, Self::Cpu];

    fn name(self) -> &'static str {
        match self {
            Self::Gpu => "GPU-like",
            Self::Cpu => "CPU-like",
        }
    }

    fn cost(self) -> Cost {
        match self {
            Self::Gpu => Cost { fixed_us: 110.0, token_us: 0.052, text_us: 1.0 },
            Self::Cpu => Cost { fixed_us: 400.0, token_us: 18.0, text_us: 0.0 },
        }
    }

    /// Enough that the largest batches are a small part of a run.
    fn requests(self) -> usize {
        match self {
            Self::Gpu => 60_000,
            Self::Cpu => 40_000,
        }
    }
}

/// The load.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pressure {
    Low,
    Middle,
    Saturating,
}

impl Pressure {
    const ALL: [Self; 3] = [Self::Low, Self::Middle, Self::Saturating];

    fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Middle => "middle",
            Self::Saturating => "saturating",
        }
    }

    fn arrivals(self, cost: Cost) -> Arrivals {
        let mean_tokens = (TOKENS.1 - TOKENS.0) as f64 / (TOKENS.1 as f64 / TOKENS.0 as f64).ln();
        let text_s = cost.of((mean_tokens * 512.0) as u64, 512).as_secs_f64() / 512.0;
        match self {
            Self::Low => Arrivals::Stream { gap: Duration::from_secs_f64(text_s / 0.05) },
            Self::Middle => Arrivals::Stream { gap: Duration::from_secs_f64(text_s / 0.5) },
            Self::Saturating => Arrivals::Clients { count: 1024, think: Duration::ZERO },
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    like: Like,
    pressure: Pressure,
    sizing: Sizing,
    seed: u64,
}

/// A setting over all seeds.
#[derive(Clone, Copy, Debug)]
struct Summary {
    sizing: Sizing,
    texts_per_s: Spread,
    p50: Spread,
    p99: Spread,
}

/// All settings at one load; adaptive is the first.
struct Field {
    like: Like,
    pressure: Pressure,
    settings: Vec<Summary>,
}

/// Runs the experiment; returns the page.
pub fn batching(output: &Output) -> Result<String, ExperimentError> {
    let fields = compare()?;
    let page = write_page(&fields, output);
    write(&output.markdown, &page)?;
    write(&output.plot, &plot(&fields))?;
    Ok(page)
}

fn sizings() -> Vec<Sizing> {
    let fixed = TEXTS.iter().flat_map(|texts| {
        TIMEOUTS_MS.iter().map(|ms| Sizing::Fixed { texts: *texts, timeout: Duration::from_millis(*ms) })
    });
    std::iter::once(Sizing::Adaptive).chain(fixed).collect()
}

fn compare() -> Result<Vec<Field>, ExperimentError> {
    let sizings = sizings();
    let mut cases = Vec::new();
    for like in Like::ALL {
        for pressure in Pressure::ALL {
            for sizing in &sizings {
                cases.extend((0..SEEDS).map(|seed| Case { like, pressure, sizing: *sizing, seed }));
            }
        }
    }
    let figures = run_all(&cases, |case| {
        let measured = try_scenario(scenario(case))?;
        Ok(Figures::of(&measured, &[usize::from(case.like == Like::Gpu)]))
    })?;
    let of_field = SEEDS as usize * sizings.len();
    let field = |(cases, figures): (&[Case], &[Figures])| {
        let seeds = SEEDS as usize;
        let settings = cases.chunks(seeds).zip(figures.chunks(seeds));
        let settings = settings.map(|(cases, figures)| Summary::of(cases[0].sizing, figures)).collect();
        Field { like: cases[0].like, pressure: cases[0].pressure, settings }
    };
    Ok(cases.chunks(of_field).zip(figures.chunks(of_field)).map(field).collect())
}

fn scenario(case: &Case) -> Scenario {
    let cost = case.like.cost();
    let device = |kind, slots| Device::unlimited(kind, slots, 65_536, cost);
    let (devices, allowed) = match case.like {
        // There is always a CPU; here nothing may be computed on it.
        Like::Gpu => (vec![device(DeviceKind::Cpu, 1), device(DeviceKind::Gpu, 2)], Allowed::Gpu),
        Like::Cpu => (vec![device(DeviceKind::Cpu, 1)], Allowed::Cpu),
    };
    let options = Options { batching: Batching { sizing: case.sizing, ..Batching::default() }, ..Options::default() };
    let load = Load {
        requests: case.like.requests(),
        arrivals: case.pressure.arrivals(cost),
        shape: Shape { allowed, ..Shape::plain((1, 1), TOKENS) },
    };
    super::noisy(Scenario::without_faults(case.seed, devices, options, load))
}

impl Summary {
    fn of(sizing: Sizing, figures: &[Figures]) -> Self {
        let spread = |figure: fn(&Figures) -> f64| Spread::of(figures.iter().map(figure));
        Self {
            sizing,
            texts_per_s: spread(|f| f.texts_per_s),
            p50: spread(|f| f.total_p50),
            p99: spread(|f| f.total_p99),
        }
    }

    fn name(&self) -> String {
        match self.sizing {
            Sizing::Adaptive => "adaptive".to_owned(),
            Sizing::Fixed { texts, timeout } => format!("{texts} texts, {} ms", timeout.as_millis()),
        }
    }
}

impl Field {
    fn adaptive(&self) -> &Summary {
        &self.settings[0]
    }

    /// The best fixed setting for this load.
    fn best_fixed(&self) -> &Summary {
        let fixed = &self.settings[1..];
        let most = fixed.iter().map(|setting| setting.texts_per_s.mean).fold(0.0, f64::max);
        let keeps_up = |setting: &&Summary| setting.texts_per_s.mean >= most * (1.0 - NOISE);
        let best = match self.pressure {
            Pressure::Saturating => fixed.iter().max_by(|a, b| a.texts_per_s.mean.total_cmp(&b.texts_per_s.mean)),
            Pressure::Low | Pressure::Middle => {
                fixed.iter().filter(keeps_up).min_by(|a, b| a.p99.mean.total_cmp(&b.p99.mean))
            }
        };
        best.unwrap_or(&fixed[0])
    }

    /// Whether the adaptive one has at least its throughput and at most its p99.
    fn is_at_least_equal(&self) -> bool {
        let (ours, best) = (self.adaptive(), self.best_fixed());
        ours.texts_per_s.mean >= best.texts_per_s.mean * (1.0 - NOISE) && ours.p99.mean <= best.p99.mean * (1.0 + NOISE)
    }
}

fn write_page(fields: &[Field], output: &Output) -> String {
    let date = output.date.as_deref().unwrap_or("no date given");
    let mut text = format!("{INTRODUCTION}\nRun: {date}.\n\n## Adaptive and the best fixed setting\n\n");
    let head = ["device", "load", "setting", "texts/s", "p50, ms", "p99, ms", "adaptive at least equal"];
    let rows: Vec<Vec<String>> = fields
        .iter()
        .flat_map(|field| {
            let verdict = if field.is_at_least_equal() { "yes" } else { "no" };
            let named = |setting: &Summary, verdict: &str| {
                let mut cells = vec![field.like.name().to_owned(), field.pressure.name().to_owned()];
                cells.extend(row(setting));
                cells.push(verdict.to_owned());
                cells
            };
            [named(field.adaptive(), verdict), named(field.best_fixed(), "")]
        })
        .collect();
    text += &page::table(&head, &rows);
    for field in fields {
        text += &format!("\n## {}, {} load: all settings\n\n", field.like.name(), field.pressure.name());
        let rows: Vec<Vec<String>> = field.settings.iter().map(row).collect();
        text += &page::table(&["setting", "texts/s", "p50, ms", "p99, ms"], &rows);
    }
    text
}

fn row(setting: &Summary) -> Vec<String> {
    vec![
        setting.name(),
        page::with_spread(setting.texts_per_s),
        page::short(setting.p50.mean),
        page::with_spread(setting.p99),
    ]
}

fn plot(fields: &[Field]) -> String {
    let panels: Vec<Panel> = fields
        .iter()
        .map(|field| {
            let adaptive = field.adaptive().p99.mean;
            let fixed = |ms: u64| -> Vec<(f64, f64)> {
                let of_timeout = |setting: &&Summary| {
                    matches!(setting.sizing, Sizing::Fixed { timeout, .. } if timeout == Duration::from_millis(ms))
                };
                let these = field.settings.iter().filter(of_timeout).enumerate();
                these.map(|(at, setting)| (at as f64, setting.p99.mean)).collect()
            };
            Panel {
                title: format!("{}, {} load: p99, ms", field.like.name(), field.pressure.name()),
                lines: vec![
                    Line {
                        name: "adaptive",
                        colour: "#0072b2",
                        points: (0..TEXTS.len()).map(|at| (at as f64, adaptive)).collect(),
                    },
                    Line { name: "fixed, 0 ms", colour: "#d55e00", points: fixed(0) },
                    Line { name: "fixed, 2 ms", colour: "#009e73", points: fixed(2) },
                    Line { name: "fixed, 10 ms", colour: "#cc79a7", points: fixed(10) },
                ],
            }
        })
        .collect();
    let frame = Frame {
        title: "p99 from arrival to answer: adaptive and fixed batches",
        x: "texts of a fixed batch",
        columns: 3,
        ticks: TEXTS.iter().map(|texts| texts.to_string()).collect(),
    };
    draw(&frame, &panels)
}
