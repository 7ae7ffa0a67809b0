//! `magray embed --resume` after kills, interrupts and failures: nothing lost, nothing computed twice, the same bytes.
//! Kills by signals only, once the journal shows what is done.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use std::{
    fs,
    io::{Read, Write},
    process::{Child, Command, Stdio},
    time::Duration,
};

use expect_test::expect;

use crate::runner::{Home, fixture};

/// A window is embedded and recorded at once.
const WINDOW: usize = 2048;
const TEXTS: usize = 3 * WINDOW + 100;

fn line(at: usize) -> String {
    format!("{{\"id\": \"t-{at}\", \"text\": \"river {} stone {at}\"}}\n", at % 7)
}

impl Home {
    /// Starts a run that has embedded this many windows and waits for more texts.
    fn begun(&self, output: &str, windows: usize, more: &[&str]) -> Child {
        let args = ["embed", "-q", "--jsonl", "--output", output, "--model", &fixture("bert"), "--precision", "f32"];
        let mut command = self.command(&args);
        let mut child = command.args(more).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let texts: String = (0..windows * WINDOW + 1).map(line).collect();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(texts.as_bytes()).unwrap();
        let journal = self.path(&format!("{output}.part.journal"));
        let records = || fs::read_to_string(&journal).unwrap_or_default().lines().count();
        while records() < windows + 1 {
            assert!(child.try_wait().unwrap().is_none(), "it ended");
            std::thread::sleep(Duration::from_millis(5));
        }
        child.stdin = Some(stdin);
        child
    }

    fn resume(&self, output: &str, more: &[&str]) -> crate::runner::Answer {
        let args = ["embed", "--jsonl", "-f", "texts.jsonl", "--resume", "--output", output];
        self.with_model(&[&args[..], more].concat()).run()
    }
}

fn home_with_texts() -> Home {
    let home = Home::new();
    home.write("texts.jsonl", (0..TEXTS).map(line).collect::<String>());
    home
}

#[test]
fn three_kills_change_no_byte_and_cost_no_text() {
    let home = home_with_texts();
    for ending in ["jsonl", "npy", "parquet", "txt"] {
        let (whole, killed) = (format!("whole.{ending}"), format!("killed.{ending}"));
        home.with_model(&["embed", "-q", "-f", "texts.jsonl", "--output", &whole]).run().success();
        for windows in 1..=3 {
            let mut child = home.begun(&killed, windows, &["--resume"]);
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(!home.path(&killed).exists());
        }
        let answer = home.resume(&killed, &[]).success();
        assert!(answer.stderr.starts_with("100 texts, "), "{}", answer.stderr);
        assert!(answer.stderr.ends_with("; 6144 were there before\n"), "{}", answer.stderr);
        assert_eq!(fs::read(home.path(&killed)).unwrap(), fs::read(home.path(&whole)).unwrap(), "{ending}");
        fs::remove_file(home.path(&killed)).unwrap();
        fs::remove_file(home.path(&whole)).unwrap();
        assert_eq!(home.names(), ["texts.jsonl"]);
    }
}

#[test]
fn bytes_after_the_last_record_and_damaged_ones_are_computed_again() {
    let home = home_with_texts();
    home.with_model(&["embed", "-q", "-f", "texts.jsonl", "--output", "whole.npy"]).run().success();
    let whole = fs::read(home.path("whole.npy")).unwrap();
    let spoil_tail = |part: &mut Vec<u8>| part.extend(b"half a row");
    let spoil_middle = |part: &mut Vec<u8>| part[128 + (WINDOW + 5) * 48 * 4] ^= 1;
    let cut = |part: &mut Vec<u8>| part.truncate(part.len() - 1);
    for (spoil, texts_before) in
        [(&spoil_tail as &dyn Fn(&mut Vec<u8>), 2 * WINDOW), (&spoil_middle, WINDOW), (&cut, WINDOW)]
    {
        let mut child = home.begun("out.npy", 2, &[]);
        child.kill().unwrap();
        child.wait().unwrap();
        let mut part = fs::read(home.path("out.npy.part")).unwrap();
        spoil(&mut part);
        fs::write(home.path("out.npy.part"), part).unwrap();
        let answer = home.resume("out.npy", &[]).success();
        assert!(answer.stderr.ends_with(&format!("; {texts_before} were there before\n")), "{}", answer.stderr);
        assert!(fs::read(home.path("out.npy")).unwrap() == whole);
    }
}

#[test]
fn a_kill_after_the_last_text_leaves_only_the_name_to_give() {
    let home = home_with_texts();
    home.with_model(&["embed", "-q", "-f", "texts.jsonl", "--output", "whole.parquet"]).run().success();
    let whole = fs::read(home.path("whole.parquet")).unwrap();
    // A failure at the end of a longer input: all of the shorter one is done.
    let mut child = home.begun("out.parquet", 3, &[]);
    child.stdin.take().unwrap().write_all((3 * WINDOW + 1..TEXTS).map(line).collect::<String>().as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read(home.path("out.parquet")).unwrap(), whole);
    // As if it had been killed between taking the name and removing the journal.
    let mut child = home.begun("out.npy", 2, &[]);
    child.kill().unwrap();
    child.wait().unwrap();
    fs::rename(home.path("out.npy.part"), home.path("out.npy")).unwrap();
    home.write("texts.jsonl", (0..2 * WINDOW).map(line).collect::<String>());
    let answer = home.resume("out.npy", &[]).success();
    assert_eq!(answer.stderr, "all 4096 texts were there already\n");
    assert!(fs::read(home.path("out.npy")).unwrap()[..128].windows(12).any(|bytes| bytes == b": (4096, 48)"));
    assert!(!home.names().iter().any(|name| name.contains("part.")), "{:?}", home.names());
}

#[test]
fn an_interrupt_says_what_is_kept_and_how_to_go_on() {
    let home = home_with_texts();
    let mut child = home.begun("out.jsonl", 1, &[]);
    assert!(Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap().success());
    // Waiting closes the child's stdin, and the end of the input must not come before the signal.
    let stdin = child.stdin.take();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(stdin);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    expect![[r#"
        2048 texts are kept in out.jsonl.part: the same command with --resume goes on
    "#]]
    .assert_eq(&stderr);
    assert_eq!(home.names(), ["out.jsonl.part", "out.jsonl.part.journal", "texts.jsonl"]);
}

#[test]
fn a_bad_line_can_be_mended_and_the_rest_goes_on() {
    let home = home_with_texts();
    let mut lines: Vec<String> = (0..TEXTS).map(line).collect();
    lines[TEXTS - 1] = "{\n".to_owned();
    home.write("texts.jsonl", lines.concat());
    let answer = home.resume("out.npy", &[]);
    assert_eq!(answer.code, 3);
    assert!(answer.stderr.contains("line 6244: not JSON"), "{}", answer.stderr);
    assert!(answer.stderr.ends_with("6144 texts are kept in out.npy.part: the same command with --resume goes on\n"));
    lines[TEXTS - 1] = line(TEXTS - 1);
    home.write("texts.jsonl", lines.concat());
    assert!(home.resume("out.npy", &[]).success().stderr.starts_with("100 texts, "));
}

#[test]
fn what_would_give_other_bytes_is_refused_and_nothing_is_lost() {
    let home = home_with_texts();
    let mut child = home.begun("out.jsonl", 1, &[]);
    child.kill().unwrap();
    child.wait().unwrap();
    home.resume("out.jsonl", &["--with-text"]).check_refused(
        2,
        expect![[r#"
            error: out.jsonl.part was begun with with_text = false, and now it is true: give the same as before, or leave --resume out to start anew
            2048 texts are kept in out.jsonl.part: the same command with --resume goes on
        "#]],
    );
    let answer = home.resume("out.jsonl", &["--model", &fixture("roberta")]);
    assert_eq!(answer.code, 2, "{}", answer.stderr);
    assert!(answer.stderr.contains(".part was begun with model = "), "{}", answer.stderr);
    let other: String = (0..TEXTS).map(|at| line(at + usize::from(at == 2000))).collect();
    for texts in [other, (0..WINDOW - 1).map(line).collect()] {
        home.write("texts.jsonl", texts);
        home.resume("out.jsonl", &[]).check_refused(
            3,
            expect![[r#"
                error: texts.jsonl is not what it was: its first 2048 texts are others now; leave --resume out to start anew
                2048 texts are kept in out.jsonl.part: the same command with --resume goes on
            "#]],
        );
    }
    home.write("texts.jsonl", (0..TEXTS).map(line).collect::<String>());
    assert!(home.resume("out.jsonl", &[]).success().stderr.ends_with("; 2048 were there before\n"));
}

#[test]
fn two_runs_do_not_write_one_file() {
    let home = home_with_texts();
    let mut child = home.begun("out.jsonl", 1, &[]);
    home.resume("out.jsonl", &[]).check_refused(
        6,
        expect![[r#"
            error: out.jsonl: another magray is writing it
        "#]],
    );
    child.kill().unwrap();
    child.wait().unwrap();
    home.check_refused(
        &["embed", "x", "--resume"],
        2,
        expect![[r#"
            error: --resume continues a file: name it with --output
        "#]],
    );
    // Without --resume it starts anew.
    home.with_model(&["embed", "-q", "x", "--output", "out.jsonl"]).run().success();
    assert_eq!(fs::read_to_string(home.path("out.jsonl")).unwrap().lines().count(), 1);
    assert_eq!(home.names(), ["out.jsonl", "texts.jsonl"]);
}
