//! The screen of `magray top`: devices, memory by owner, load, models, what happened.
//! Asks nothing and keeps nothing; what does not fit is cut, the least important first.

use std::time::Instant;

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Clear, Paragraph},
};

use super::{
    super::gpu::{
        status::stay,
        words::{size, span},
    },
    history::{History, Point},
    keys::{Controls, HELP},
    memory,
    metrics::Histogram,
};
use crate::{
    control::{DeviceReport, EngineReport, ModelReport},
    output::{aligned, safe},
};

/// What is drawn.
pub(super) struct Screen<'a> {
    pub(super) source: &'a str,
    pub(super) history: &'a History,
    pub(super) controls: &'a Controls,
    pub(super) has_colour: bool,
    pub(super) now: Instant,
    /// Whether keys can be pressed.
    pub(super) is_live: bool,
}

/// Lines of what happened that are wanted at least.
const EVENTS_MIN: u16 = 3;
const SPARK_MAX: usize = 40;

impl Screen<'_> {
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let Some(sample) = self.history.last() else {
            let text = self.history.problem.clone().unwrap_or_else(|| "asking ...".to_owned());
            frame.render_widget(Paragraph::new(safe(&text)), area);
            return;
        };
        let engine = &sample.engine;
        let sections = [
            self.load(engine, area.width),
            self.devices(engine, area.width),
            self.memory(engine, area.width),
            self.models(engine, area.width),
        ];
        let heights: Vec<u16> = sections.iter().map(|lines| u16::try_from(lines.len()).unwrap_or(u16::MAX)).collect();
        let [load, devices, memory, models] = heights[..] else { unreachable!("four sections") };
        let [head, load_area, devices_area, memory_area, models_area, events_area, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(load),
            Constraint::Length(devices),
            Constraint::Length(memory),
            Constraint::Max(models),
            Constraint::Min(EVENTS_MIN),
            Constraint::Length(u16::from(self.is_live)),
        ])
        .areas(area);
        frame.render_widget(Paragraph::new(self.head(engine)), head);
        for (lines, area) in sections.into_iter().zip([load_area, devices_area, memory_area, models_area]) {
            frame.render_widget(Paragraph::new(lines), area);
        }
        frame.render_widget(Paragraph::new(self.events()), events_area);
        frame.render_widget(Paragraph::new(self.foot()), foot);
        if self.controls.shows_help {
            help(frame, area);
        }
    }

    /// The lines that all of it takes, for a frame that is printed.
    pub(super) fn height(&self, width: u16) -> u16 {
        let Some(sample) = self.history.last() else { return 1 };
        let engine = &sample.engine;
        let lines = self.load(engine, width).len()
            + self.devices(engine, width).len()
            + self.memory(engine, width).len()
            + self.models(engine, width).len()
            + self.events().len().max(usize::from(EVENTS_MIN));
        u16::try_from(lines + 1 + usize::from(self.is_live)).unwrap_or(u16::MAX)
    }

    fn head(&self, engine: &EngineReport) -> Line<'static> {
        let mut text = format!("magray {} {}  up {}", engine.magray, self.source, span(engine.uptime_s));
        if let Some(problem) = &self.history.problem {
            text.push_str(&format!("  NO ANSWER: {}", safe(problem)));
            return Line::styled(text, self.bad().add_modifier(Modifier::REVERSED));
        }
        Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
    }

    fn load(&self, engine: &EngineReport, width: u16) -> Vec<Line<'static>> {
        let performance = &engine.performance;
        let points = &self.history.points;
        let spark = |value: fn(&Point) -> f64| {
            let room = usize::from(width).saturating_sub(34).min(SPARK_MAX);
            let last: Vec<f64> = points.iter().rev().take(room).rev().map(value).collect();
            sparkline(&last)
        };
        let latest = points.back();
        let requests = latest.map_or(performance.requests_per_s, |point| point.requests_per_s);
        let tokens = latest.map_or(performance.tokens_per_s, |point| point.tokens_per_s);
        let mut lines = vec![
            heading("load"),
            Line::from(format!("requests/s {requests:>9.1}   {}", spark(|point| point.requests_per_s))),
            Line::from(format!("tokens/s   {tokens:>9.0}   {}", spark(|point| point.tokens_per_s))),
            Line::from(format!(
                "waiting    {:>9}   {}",
                format!("{}/{}", engine.waiting, engine.requests),
                spark(|point| point.waiting)
            )),
        ];
        match self.history.window() {
            Some(window) => {
                let part = |name: &str, histogram: &Histogram| match (histogram.at(0.5), histogram.at(0.99)) {
                    (Some(half), Some(most)) => format!("{name} p50 {} p99 {}", span(half), span(most)),
                    _ => format!("{name} -"),
                };
                let batch = window.batch_texts.mean().map_or_else(|| "-".to_owned(), |mean| format!("{mean:.1}"));
                let most = window.batch_texts.at(0.99).map_or_else(String::new, |most| format!(" (p99 {most:.0})"));
                lines.push(Line::from(format!(
                    "{}   {}   texts a batch {batch}{most}",
                    part("queue", &window.queue),
                    part("compute", &window.compute)
                )));
            }
            None => {
                let mean = performance.latency_mean_s.map_or_else(|| "-".to_owned(), span);
                lines.push(Line::from(format!("latency {mean} (mean of the last minute)")));
            }
        }
        let rate = performance.fallback_rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.1} %", rate * 100.0));
        let reasons = self.history.last().and_then(|sample| sample.metrics.as_ref()).map(|metrics| {
            let some = metrics.fallbacks.iter().filter(|(_, count)| **count > 0.0);
            some.map(|(reason, count)| format!("{reason} {count}")).collect::<Vec<_>>().join(", ")
        });
        let reasons = reasons
            .filter(|reasons| !reasons.is_empty())
            .map_or_else(String::new, |all| format!("; since the start: {all}"));
        lines.push(Line::from(format!("on the CPU in place of a GPU: {rate} of the last minute{reasons}")));
        lines
    }

    fn devices(&self, engine: &EngineReport, width: u16) -> Vec<Line<'static>> {
        let busy = self.history.points.back().map(|point| point.busy.clone()).unwrap_or_default();
        let mut rows = vec![device_head(width)];
        for (at, device) in engine.devices.iter().enumerate() {
            rows.push(device_cells(device, busy.get(at).copied(), width));
        }
        let mut lines = vec![heading("devices")];
        let table = aligned(&rows);
        for (at, text) in table.lines().enumerate() {
            let state = at.checked_sub(1).and_then(|at| engine.devices.get(at)).map(|device| device.state.as_str());
            let style = match state {
                None => self.faint(),
                Some("in_rotation" | "resting") => Style::new(),
                Some(_) => self.bad(),
            };
            lines.push(Line::styled(text.to_owned(), style));
        }
        lines
    }

    fn memory(&self, engine: &EngineReport, width: u16) -> Vec<Line<'static>> {
        let mut lines: Vec<Line<'static>> = Vec::new();
        for device in engine.devices.iter().filter(|device| device.memory_total_bytes.is_some()) {
            if lines.is_empty() {
                lines.push(heading("memory"));
            }
            let parts = memory::parts(device, &engine.models);
            let bar = parts.bar(usize::from(width).saturating_sub(60).clamp(10, 60));
            let mut spans = vec![Span::raw(format!("{:<7}[", device.name))];
            for (owner, text) in bar {
                spans.push(Span::styled(text, self.owner(owner)));
            }
            spans.push(Span::raw(format!("] {}", parts.in_words())));
            lines.push(Line::from(spans));
        }
        lines
    }

    fn models(&self, engine: &EngineReport, width: u16) -> Vec<Line<'static>> {
        let sorted = self.controls.sorted(&engine.models);
        let selected = self.controls.place(&sorted);
        let head = ["model", "where", "idle", "size", "open", "timeout", "priority"];
        let count = match width {
            0..50 => 3,
            50..70 => 5,
            _ => head.len(),
        };
        let mut rows: Vec<Vec<String>> = vec![head[..count].iter().map(|word| (*word).to_owned()).collect()];
        rows.extend(sorted.iter().map(|model| model_cells(model, count)));
        let order = self.controls.order.word();
        let mut lines = vec![heading(&format!("models (order: {order})"))];
        for (at, text) in aligned(&rows).lines().enumerate() {
            let is_selected = self.is_live && at == selected + 1;
            let style = match at {
                0 => self.faint(),
                _ if is_selected => Style::new().add_modifier(Modifier::REVERSED),
                _ => Style::new(),
            };
            let mark = if is_selected { "> " } else { "  " };
            lines.push(Line::styled(format!("{mark}{text}"), style));
        }
        lines
    }

    fn events(&self) -> Vec<Line<'static>> {
        let mut lines = vec![heading("what happened")];
        for event in &self.history.events {
            let ago = span_ago(self.now.saturating_duration_since(event.at).as_secs());
            let style = if event.is_bad { self.bad() } else { Style::new() };
            lines.push(Line::styled(format!("{ago:>8}  {}", safe(&event.text)), style));
        }
        if lines.len() == 1 {
            lines.push(Line::styled("nothing yet", self.faint()));
        }
        lines
    }

    fn foot(&self) -> Line<'static> {
        match &self.controls.asks {
            Some(question) => Line::styled(
                format!("{} '{}'? y: yes, any other key: no", question.how.word(), safe(&question.model)),
                Style::new().add_modifier(Modifier::REVERSED),
            ),
            None => Line::styled(
                "?: help  up, down: select  s: sort  o: offload  p: preheat  r: release  q: quit",
                self.faint(),
            ),
        }
    }

    fn bad(&self) -> Style {
        if self.has_colour { Style::new().fg(Color::Red) } else { Style::new().add_modifier(Modifier::BOLD) }
    }

    fn faint(&self) -> Style {
        if self.has_colour { Style::new().fg(Color::DarkGray) } else { Style::new().add_modifier(Modifier::DIM) }
    }

    fn owner(&self, owner: memory::Owner) -> Style {
        use memory::Owner;
        if !self.has_colour {
            return Style::new();
        }
        Style::new().fg(match owner {
            Owner::Weights => Color::Green,
            Owner::Workspace => Color::Cyan,
            Owner::Kv => Color::Yellow,
            Owner::Others => Color::Magenta,
            Owner::Free => Color::DarkGray,
        })
    }
}

fn heading(text: &str) -> Line<'static> {
    Line::styled(format!("-- {text}"), Style::new().add_modifier(Modifier::BOLD))
}

fn device_head(width: u16) -> Vec<String> {
    let wide = ["device", "state", "grade", "busy", "load", "temperature", "power", "memory used", "worker"];
    columns(&wide.map(str::to_owned), width)
}

/// The columns that a width has room for, by their importance.
fn columns(cells: &[String; 9], width: u16) -> Vec<String> {
    let wanted: &[usize] = match width {
        0..50 => &[0, 1, 3],
        50..70 => &[0, 1, 2, 3, 7],
        70..100 => &[0, 1, 2, 3, 5, 6, 7],
        _ => &[0, 1, 2, 3, 4, 5, 6, 7, 8],
    };
    wanted.iter().map(|at| cells[*at].clone()).collect()
}

fn device_cells(device: &DeviceReport, busy: Option<f64>, width: u16) -> Vec<String> {
    let unknown = || "-".to_owned();
    let state = match &device.reason {
        Some(reason) => format!("{} ({reason})", device.state),
        None => device.state.clone(),
    };
    let power = match (device.power_watts, device.power_limit_watts) {
        (Some(watts), Some(limit)) => Some(format!("{watts:.0}/{limit:.0} W")),
        (watts, _) => watts.map(|watts| format!("{watts:.0} W")),
    };
    let cells = [
        device.name.clone(),
        state,
        device.grade.letter().to_owned(),
        busy.map_or_else(unknown, |busy| format!("{:.0} %", busy * 100.0)),
        device.utilisation_percent.map_or_else(unknown, |percent| format!("{percent} %")),
        device.temperature_celsius.map_or_else(unknown, |celsius| format!("{celsius} C")),
        power.unwrap_or_else(unknown),
        device.memory_used_bytes.map_or_else(unknown, size),
        device.worker_pid.map_or_else(unknown, |pid| format!("pid {pid}")),
    ];
    columns(&cells, width)
}

fn model_cells(model: &ModelReport, count: usize) -> Vec<String> {
    let places: Vec<String> = model.residency.iter().map(|at| format!("{} {}", at.device, at.place)).collect();
    let cells = [
        safe(&model.name),
        places.join(", "),
        span(model.idle_s),
        size(model.bytes),
        model.requests.to_string(),
        stay(model),
        model.priority.clone(),
    ];
    cells.into_iter().take(count).collect()
}

/// Bars of eight heights, the largest value the highest.
fn sparkline(values: &[f64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.iter().copied().fold(0.0, f64::max);
    let bar = |value: &f64| {
        let share = if most > 0.0 { value / most } else { 0.0 };
        BARS[((share * 7.0).round() as usize).min(7)]
    };
    values.iter().map(bar).collect()
}

fn span_ago(seconds: u64) -> String {
    match seconds {
        0 => "now".to_owned(),
        1..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let rows: Vec<Vec<String>> = HELP.iter().map(|(keys, what)| vec![(*keys).to_owned(), (*what).to_owned()]).collect();
    let text = aligned(&rows);
    let wide = text.lines().map(|line| line.chars().count()).max().unwrap_or(0) as u16;
    let (width, height) = ((wide + 4).min(area.width), (HELP.len() as u16 + 2).min(area.height));
    let place = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    let lines: Vec<Line<'_>> = text.lines().map(|line| Line::from(format!(" {line}"))).collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys ")), place);
}
