//! `magray top` on a terminal and in a pipe, beside an engine that runs.

use expect_test::expect;

use crate::{control::Engine, pty::Terminal, runner::Home};

#[test]
fn a_frame_is_printed_into_a_pipe() {
    let home = Home::new();
    let engine = Engine::start(&home);
    let text = home.call(&["top", "--once"]).run().success().stdout;
    for part in
        [&format!("pid {}", engine.pid()), "-- load", "-- devices", "-- models", "-- what happened", "cpu", "bert"]
    {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains('\u{1b}') && !text.contains(" \n"), "{text:?}");
    let by_pid = home.call(&["top", "--once", "--pid", &engine.pid().to_string()]).run().success().stdout;
    assert!(by_pid.contains("bert"), "{by_pid}");
}

#[test]
fn without_an_engine_a_server_or_a_terminal_it_says_what_to_do() {
    let home = Home::new();
    home.check_refused(
        &["top", "--once"],
        8,
        expect![[r#"
        error: no magray is running: there is no model to move
    "#]],
    );
    let answer = home.call(&["top", "--once", "--server", "http://127.0.0.1:1"]).run();
    assert_eq!((answer.code, answer.stdout.as_str()), (8, ""), "{}", answer.stderr);
    let _engine = Engine::start(&home);
    for command in [&["top"][..], &["gpu", "status", "--watch"]] {
        home.check_refused(
            command,
            2,
            expect![[r#"
            error: this needs a terminal: `magray top --once` prints one frame as text
        "#]],
        );
    }
}

#[test]
fn keys_move_models_after_a_yes_and_the_terminal_is_left_as_it_was() {
    let home = Home::new();
    let _engine = Engine::start(&home);
    let mut terminal = Terminal::start(home.command(&["top", "--every", "0.1"]));
    terminal.wait_for_on_screen("bert");
    assert!(!terminal.reads_lines());
    terminal.send("?");
    terminal.wait_for_on_screen("release it: out of all memory");
    terminal.send(" p");
    terminal.wait_for_on_screen("preheat 'bert'?");
    terminal.send("y");
    terminal.wait_for_on_screen("preheat of 'bert' is done");
    terminal.resize(40, 12);
    terminal.wait_for_on_screen("bert");
    terminal.send("q");
    terminal.wait_for("\u{1b}[?1049l");
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn a_signal_and_ctrl_c_leave_the_terminal_as_it_was() {
    let home = Home::new();
    let _engine = Engine::start(&home);
    let start = || {
        let mut command = home.command(&["gpu", "status", "--watch"]);
        command.env("NO_COLOR", "1");
        let mut terminal = Terminal::start(command);
        terminal.wait_for_on_screen("bert");
        terminal
    };
    let mut terminal = start();
    terminal.terminate();
    terminal.wait_for("\u{1b}[?1049l");
    assert_eq!(terminal.end(), Some(130));
    let mut terminal = start();
    terminal.send("\u{3}");
    terminal.wait_for("\u{1b}[?1049l");
    assert!(terminal.reads_lines());
    assert_eq!(terminal.end(), Some(0));
}
