//! Frames of `magray top` for engines that these tests make up.

use std::time::{Duration, Instant};

use expect_test::expect;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::{
    metrics::{Metrics, tests::PAGE},
    *,
};
use crate::commands::gpu::status::tests::engine;

/// A minute with a GPU that failed, as it is seen at its end.
fn history(start: Instant) -> History {
    let mut history = History::default();
    for second in 0..60 {
        let mut engine = engine();
        engine.uptime_s = 100.0 + second as f64;
        engine.devices[1].busy_s += second as f64 / 2.0;
        let mut page = PAGE.replace("{model=\"c\"} 30", &format!("{{model=\"c\"}} {}", 30 + second * second));
        if second > 50 {
            let gpu = &mut engine.devices[1];
            gpu.failures += 1;
            gpu.last_error = Some("the worker was killed\u{1b}[2J".to_owned());
            page = page.replace("replays_total 2", "replays_total 4");
        }
        let metrics = Some(Metrics::read(&page));
        history.add(Sample { at: start + Duration::from_secs(second), engine, metrics });
    }
    history
}

fn frame(history: &History, controls: &Controls, (width, height): (u16, u16)) -> String {
    let start = history.last().map_or_else(Instant::now, |sample| sample.at);
    let screen = Screen {
        source: "pid 4711",
        history,
        controls,
        has_colour: false,
        now: start + Duration::from_secs(1),
        is_live: true,
    };
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(|frame| screen.draw(frame));
    let cells = terminal.backend().buffer().content();
    let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
    cells.chunks(usize::from(width)).map(|cells| line(cells).trim_end().to_owned() + "\n").collect()
}

#[test]
fn a_terminal_of_80_columns_and_24_lines_shows_all_sections() {
    let history = history(Instant::now());
    expect![[r#"
        magray 0.1.0 pid 4711  up 2 min
        -- load
        requests/s     117.0   ▃▃▄▄▄▄▄▄▄▄▅▅▅▅▅▅▅▅▅▆▆▆▆▆▆▆▆▇▇▇▇▇▇▇▇█████
        tokens/s           0   ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁
        waiting          1/2   ████████████████████████████████████████
        queue -   compute -   texts a batch -
        on the CPU in place of a GPU: 0.8 % of the last minute; since the start: waking
        -- devices
        device  state        grade  busy  temperature  power      memory used
        cpu     in_rotation  A      0 %   -            -          -
        cuda:0  in_rotation  B      50 %  41 C         120/700 W  99.0 MB
        -- memory
        cuda:0 [#+~.................] #weights 45.0 MB +passes 54.0 MB ~others 510.0 MB
        -- models (order: as served)
          model             where                        idle    size     open  timeout
        > all-MiniLM-L6-v2  cpu ready, cuda:0 on_gpu     0.0 ms  45.0 MB  2     60 s
          org/other         cpu unloaded, cuda:0 on_cpu  75 s    45.0 MB  0     pinned
        -- what happened
             9 s  cuda:0: the worker was killed\u{1b}[2J; 2 requests were computed again




        ?: help  up, down: select  s: sort  o: offload  p: preheat  r: release  q: quit
    "#]]
    .assert_eq(&frame(&history, &Controls::default(), (80, 24)));
}

#[test]
fn a_wide_terminal_shows_all_columns() {
    let history = history(Instant::now());
    expect![[r#"
        magray 0.1.0 pid 4711  up 2 min
        -- load
        requests/s     117.0   ▃▃▄▄▄▄▄▄▄▄▅▅▅▅▅▅▅▅▅▆▆▆▆▆▆▆▆▇▇▇▇▇▇▇▇█████
        tokens/s           0   ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁
        waiting          1/2   ████████████████████████████████████████
        queue -   compute -   texts a batch -
        on the CPU in place of a GPU: 0.8 % of the last minute; since the start: waking 3
        -- devices
        device  state        grade  busy  load  temperature  power      memory used  worker
        cpu     in_rotation  A      0 %   -     -            -          -            -
        cuda:0  in_rotation  B      50 %  35 %  41 C         120/700 W  99.0 MB      pid 4712
        -- memory
        cuda:0 [#+~.........................................................] #weights 45.0 MB +passes 54.0 MB ~others 510.0 MB
        -- models (order: as served)
          model             where                        idle    size     open  timeout  priority
        > all-MiniLM-L6-v2  cpu ready, cuda:0 on_gpu     0.0 ms  45.0 MB  2     60 s     normal
          org/other         cpu unloaded, cuda:0 on_cpu  75 s    45.0 MB  0     pinned   high
        -- what happened
             9 s  cuda:0: the worker was killed\u{1b}[2J; 2 requests were computed again




        ?: help  up, down: select  s: sort  o: offload  p: preheat  r: release  q: quit
    "#]].assert_eq(&frame(&history, &Controls::default(), (120, 24)));
}

#[test]
fn a_narrow_terminal_shows_the_most_important_ones() {
    let history = history(Instant::now());
    expect![[r#"
        magray 0.1.0 pid 4711  up 2 min
        -- load
        requests/s     117.0   ▇█████
        tokens/s           0   ▁▁▁▁▁▁
        waiting          1/2   ██████
        queue -   compute -   texts a batch -
        on the CPU in place of a GPU: 0.8 % of t
        -- devices
        device  state        busy
        cpu     in_rotation  0 %
        cuda:0  in_rotation  50 %
        -- memory
        cuda:0 [#+~.......] #weights 45.0 MB +pa
        -- models (order: as served)
          model             where
        > all-MiniLM-L6-v2  cpu ready, cuda:0 on
        -- what happened
             9 s  cuda:0: the worker was killed\

        ?: help  up, down: select  s: sort  o: o
    "#]]
    .assert_eq(&frame(&history, &Controls::default(), (40, 20)));
}

#[test]
fn every_size_is_drawn_with_every_state() {
    let (history, empty) = (history(Instant::now()), History::default());
    let mut failed = history.clone();
    failed.fail("no answer from http://x: refused".to_owned());
    let mut asks = Controls::default();
    let models = engine().models;
    asks.press(KeyEvent::from(KeyCode::Char('r')), &models);
    let helps = Controls { shows_help: true, ..Controls::default() };
    for width in [1, 2, 7, 20, 33, 49, 50, 69, 70, 99, 100, 300] {
        for height in [1, 2, 3, 5, 10, 24, 100] {
            for history in [&history, &empty, &failed] {
                for controls in [&Controls::default(), &asks, &helps] {
                    let frame = frame(history, controls, (width, height));
                    assert_eq!(frame.lines().count(), usize::from(height));
                    assert!(!frame.contains('\u{1b}'), "what a server says steers no terminal");
                }
            }
        }
    }
}

#[test]
fn questions_help_and_failures_are_seen() {
    let (history, models) = (history(Instant::now()), engine().models);
    let mut controls = Controls::default();
    controls.press(KeyEvent::from(KeyCode::Down), &models);
    controls.press(KeyEvent::from(KeyCode::Char('o')), &models);
    let asked = frame(&history, &controls, (80, 24));
    assert!(asked.contains("offload 'org/other'? y: yes, any other key: no"), "{asked}");
    assert!(asked.contains("> org/other"), "{asked}");
    let helps = Controls { shows_help: true, ..Controls::default() };
    assert!(frame(&history, &helps, (100, 30)).contains("release it: out of all memory"));
    let mut failed = history;
    failed.fail("magray (pid 4711) has ended".to_owned());
    let shown = frame(&failed, &Controls::default(), (80, 24));
    assert!(shown.contains("NO ANSWER: magray (pid 4711) has ended"), "{shown}");
    assert!(shown.contains("all-MiniLM-L6-v2"), "what was known stays");
}

#[test]
fn an_engine_without_metrics_and_without_a_gpu_is_shown() {
    let mut engine = engine();
    engine.devices.truncate(1);
    engine.models.clear();
    let mut history = History::default();
    history.add(Sample { at: Instant::now(), engine, metrics: None });
    let screen = Screen {
        source: "pid 4711",
        history: &history,
        controls: &Controls::default(),
        has_colour: false,
        now: Instant::now(),
        is_live: false,
    };
    expect![[r#"
        magray 0.1.0 pid 4711  up 62 min
        -- load
        requests/s       2.0
        tokens/s        1280
        waiting          1/2
        latency 4.2 ms (mean of the last minute)
        on the CPU in place of a GPU: 0.8 % of the last minute
        -- devices
        device  state        grade  busy  temperature  power  memory used
        cpu     in_rotation  A      -     -            -      -
        -- models (order: as served)
          model  where  idle  size  open  timeout  priority
        -- what happened
        nothing yet
    "#]]
    .assert_eq(&printed(&screen, 80));
}
