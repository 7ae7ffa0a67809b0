//! Input and output that cannot be: a clear message, the right code, nothing left behind.
//! None of these gets as far as a model.

use std::{
    fs,
    io::{self, Write},
    process::{Command, Stdio},
};

use expect_test::expect;

use crate::runner::Home;

#[test]
fn input_that_cannot_be_read() {
    let home = Home::new();
    home.check_refused(
        &["embed"],
        3,
        expect![[r#"
        error: standard input holds no text
    "#]],
    );
    home.check_refused(
        &["embed", "--jsonl", "x"],
        2,
        expect![[r#"
        error: --jsonl is for -f FILE and for standard input, not for TEXT
    "#]],
    );
    home.check_refused(
        &["embed", "-f", "nowhere.txt"],
        3,
        expect![[r#"
        error: nowhere.txt: no such file
    "#]],
    );
    home.check_refused(
        &["embed", "-f", "."],
        3,
        expect![[r#"
        error: .: a folder, not a file of texts
    "#]],
    );
    home.write("empty.txt", "");
    home.check_refused(
        &["embed", "-f", "empty.txt"],
        3,
        expect![[r#"
        error: empty.txt holds no text
    "#]],
    );
    home.check_refused(
        &["embed", "-"],
        3,
        expect![[r#"
        error: standard input holds no text
    "#]],
    );
}

#[test]
fn a_file_without_permission() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let path = home.write("secret.txt", "text\n");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(&path).is_ok() {
        return magray_skip::test(magray_skip::Need::OrdinaryUser, "this user may read every file");
    }
    home.check_refused(
        &["embed", "-f", "secret.txt"],
        3,
        expect![[r#"
        error: secret.txt: no permission to read it
    "#]],
    );
}

#[test]
fn texts_that_are_not_acceptable() {
    let home = Home::new();
    home.write("latin1.txt", b"first\ncaf\xe9\n");
    home.check_refused(
        &["embed", "-f", "latin1.txt"],
        3,
        expect![[r#"
        error: latin1.txt, line 2: not valid UTF-8 at byte 3 of the line (byte 9 of the input, counted from 0)
    "#]],
    );
    home.write("long.txt", "x".repeat(10 << 20));
    home.check_refused(
        &["embed", "-f", "long.txt"],
        3,
        expect![[r#"
        error: long.txt, line 1: longer than 1048576 bytes; split it, or raise --max-text-bytes
    "#]],
    );
    home.check_refused(
        &["embed", "--max-text-bytes", "3", "four"],
        3,
        expect![[r#"
            error: the command line, text 1: longer than 3 bytes; split it, or raise --max-text-bytes
        "#]],
    );
    home.write("bad.jsonl", "\"good\"\n{\"txt\": \"bad\"}\n");
    home.check_refused(
        &["embed", "-f", "bad.jsonl"],
        3,
        expect![[r#"
        error: bad.jsonl, line 2: an object without "text"; a line is a JSON string, or an object with the string "text"
    "#]],
    );
    home.call(&["embed", "--jsonl", "-"]).stdin("{\"text\": \"a\"").run().check_refused(
        3,
        expect![[r#"
        error: standard input, line 1: not JSON: EOF while parsing an object at line 1 column 12
    "#]],
    );
}

#[test]
fn an_argument_that_is_not_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let home = Home::new();
    let output = home.command(&["embed", "good"]).arg(std::ffi::OsStr::from_bytes(b"caf\xe9")).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let message = String::from_utf8(output.stderr).unwrap();
    expect![[r#"
        error: text 2 of the command line is not valid UTF-8 at byte 3 (counted from 0)
    "#]]
    .assert_eq(&message);
}

#[test]
fn an_ending_of_no_format_is_refused_before_anything_is_read() {
    let home = Home::new();
    for name in ["vectors.csv", "vectors.NPZ"] {
        let answer = home.call(&["embed", "-f", "nowhere.txt", "--output", name]).run();
        assert_eq!((answer.code, answer.stdout.as_str()), (2, ""));
        assert!(answer.stderr.contains("chooses no format; use .jsonl, .npy, .parquet or .txt"), "{}", answer.stderr);
    }
    home.check_refused(
        &["embed", "x", "--with-text", "--output", "x.npy"],
        2,
        expect![[r#"
        error: --with-text is not for an .npy array, which holds vectors only
    "#]],
    );
}

#[test]
fn output_that_cannot_be_written_is_known_before_the_model_is_pulled() {
    let home = Home::new();
    home.check_refused(
        &["embed", "x", "--output", "."],
        6,
        expect![[r#"
        error: .: a folder; name a file in it
    "#]],
    );
    home.check_refused(
        &["embed", "x", "--output", "nowhere/out.npy"],
        6,
        expect![[r#"
        error: nowhere/out.npy: its folder does not exist; create it first
    "#]],
    );
    assert!(home.names().is_empty());
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_stdout() {
    let home = Home::new();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    home.call(&["config"]).stdout(full).run().check_refused(
        6,
        expect![[r#"
        error: cannot write standard output: No space left on device (os error 28)
    "#]],
    );
}

#[test]
fn a_reader_that_has_gone_is_no_failure() {
    let home = Home::new();
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let answer = home.call(&["config"]).stdout(writer).run().success();
    assert_eq!(answer.stderr, "");
}

#[test]
fn an_interrupt_ends_with_130() {
    let home = Home::new();
    let mut child = home
        .command(&["embed", "-", "--output", "out.txt"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // More than a pipe holds: when this returns, the program is reading, so it has taken over the signal.
    stdin.write_all(&b"text ".repeat(40_000)).unwrap();
    let kill = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    assert!(kill.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(home.names().is_empty());
}
