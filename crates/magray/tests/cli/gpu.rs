//! `magray gpu` and `--device` on a machine whose GPUs are hidden, or that has none.
//! What a GPU computes is tested elsewhere.

use expect_test::expect;
use serde_json::Value;

use crate::runner::{Home, fixture};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn info_says_plainly_that_there_is_no_gpu() {
    let home = Home::new();
    let answer = home.call(&["gpu", "info"]).run().success();
    assert_eq!(answer.stderr, "");
    let text = answer.stdout;
    assert!(text.starts_with("GPU           none ("), "{text}");
    assert!(text.contains("\nTensorRT      off\n") && text.contains("\nchosen        cpu\n"), "{text}");
    assert!(text.contains("\nmodel         all-MiniLM-L6-v2 (not pulled yet)\n"), "{text}");
    let answer = home.call(&["gpu", "info", "--json", "--model", &fixture("bert")]).run().success();
    let found = json(&answer.stdout);
    assert_eq!(found["gpus"], serde_json::json!([]));
    let (choice, declined) = (&found["choice"], &found["declined"]);
    assert_eq!((&choice["device"], &choice["reason"]), (&"cpu".into(), &declined["code"]));
    assert_eq!(choice["model_is_pulled"], true);
    // Looking is no failure, also where a GPU is asked for that cannot be had.
    let answer = home.call(&["gpu", "info", "--json", "--device", "cuda:0"]).run().success();
    assert_eq!(json(&answer.stdout)["choice"]["device"], Value::Null);
}

#[test]
fn the_benchmark_measures_the_cpu_alone_and_draws_it() {
    let home = Home::new();
    let args = ["gpu", "benchmark", "--model", "synthetic:tiny", "--batch", "1,3", "--tokens", "8", "--seconds", "0"];
    let answer = home.call(&[&args[..], &["--json", "--plot", "speed.svg"]].concat()).run().success();
    let found = json(&answer.stdout);
    assert_eq!((&found["gpu"], &found["cases"][0]["gpu"], &found["cases"][0]["speedup"]), Default::default());
    assert!(found["gpu_absent"]["code"].is_string());
    assert_eq!(found["cases"][1]["batch"], 3);
    assert!(found["cases"][1]["cpu"]["texts_per_s"].as_f64().is_some_and(|speed| speed > 0.0));
    assert!(std::fs::read_to_string(home.path("speed.svg")).is_ok_and(|svg| svg.starts_with("<svg ")));
    assert_eq!(home.names(), ["speed.svg"]);
    let answer = home.call(&args).run().success();
    let lines: Vec<&str> = answer.stdout.lines().collect();
    assert_eq!(lines[0], "synthetic:tiny, texts of 8 tokens");
    assert!(lines[2].starts_with("no GPU ("), "{}", answer.stdout);
    // A machine that is busy elsewhere needs wider columns.
    assert_eq!(lines[4].split_whitespace().collect::<Vec<_>>(), ["batch", "cpu", "ms", "cpu", "texts/s"]);
}

#[test]
fn a_benchmark_that_cannot_be_ends_before_it_begins() {
    let home = Home::new();
    let model = "synthetic:tiny";
    let answer = home.call(&["gpu", "benchmark", "--model", model, "--device", "cuda:0"]).run();
    assert_eq!((answer.code, answer.stdout.as_str()), (7, ""));
    home.check_refused(
        &["gpu", "benchmark", "--model", model, "--plot", "nowhere/speed.svg"],
        6,
        expect![[r#"
            error: nowhere/speed.svg: its folder does not exist; create it first
        "#]],
    );
    home.check_refused(
        &["gpu", "benchmark", "--model", model, "--tokens", "513"],
        2,
        expect![[r#"
            error: --tokens 513: this model reads at most 512
        "#]],
    );
}

#[test]
fn a_gpu_that_is_named_and_missing_is_an_error_that_says_why() {
    let home = Home::new();
    let model = fixture("bert");
    for args in [
        &["embed", "river", "--device", "cuda:0"][..],
        &["similarity", "river", "stone", "--device", "cuda"],
        &["bench", "embed", "--device", "cuda:GPU-1234"],
    ] {
        let answer = home.call(args).env("MAGRAY_MODEL", &model).run();
        assert_eq!((answer.code, answer.stdout.as_str()), (7, ""), "{}", answer.stderr);
        let message = format!("error: device {} cannot be used: ", args[args.len() - 1]);
        assert!(answer.stderr.starts_with(&message), "{}", answer.stderr);
        assert!(answer.stderr.ends_with("--device auto or cpu works without it\n"), "{}", answer.stderr);
    }
    home.write("magray.toml", "[gpu]\nenabled = false\n");
    home.call(&["embed", "river", "--device", "cuda:0"]).env("MAGRAY_MODEL", &model).run().check_refused(
        7,
        expect![[r#"
            error: device cuda:0 cannot be used: gpu.enabled is false; --device auto or cpu works without it
        "#]],
    );
    home.write("magray.toml", "[gpu]\nfallback_enabled = false\n");
    let answer = home.call(&["embed", "river"]).env("MAGRAY_MODEL", &model).run();
    assert_eq!(answer.code, 7);
    assert!(answer.stderr.contains("gpu.fallback_enabled is false"), "{}", answer.stderr);
}

#[test]
fn auto_is_silent_without_a_gpu_and_tells_those_who_ask() {
    let home = Home::new();
    let call = |args: &[&str]| home.call(args).env("MAGRAY_MODEL", fixture("bert")).run().success();
    assert_eq!(call(&["similarity", "river", "river"]).stderr, "");
    let answer = call(&["similarity", "river", "river", "-v", "--json"]);
    assert_eq!(answer.stderr, "computing on cpu: the CPU is done before a GPU has started\n");
    let found = json(&answer.stdout);
    assert_eq!((&found["device"], &found["fallback"]), (&"cpu".into(), &Value::Null));
    let answer = call(&["similarity", "river", "river", "-v", "--device", "cpu"]);
    assert_eq!(answer.stderr, "computing on cpu: it was asked for\n");
}

#[test]
#[cfg(target_os = "linux")]
fn a_worker_tries_what_its_sandbox_refuses_and_a_setting_switches_it_off() {
    let home = Home::new();
    let model = fixture("bert");
    let try_all = |mode: &str| {
        let args = ["gpu", "sandbox", "--device", "simulated", "--model", &model, "--json"];
        let answer = home.call(&args).env("MAGRAY_SANDBOX", mode).run().success();
        json(&answer.stdout)["devices"][0].clone()
    };
    let outcome = |device: &Value, what: &str| {
        let attempts = device["attempts"].as_array().cloned().unwrap_or_default();
        attempts.iter().find(|attempt| attempt["what"] == what).map(|attempt| attempt["outcome"].clone())
    };
    let off = try_all("off");
    assert_eq!((&off["device"], &off["seccomp"], &off["landlock"]), (&"sim:0".into(), &false.into(), &Value::Null));
    let auto = try_all("auto");
    for what in ["run a program", "connect to a TCP port", "connect to a Unix socket"] {
        assert_eq!(outcome(&off, what), Some("done".into()), "{what}: {off}");
        assert_eq!(outcome(&auto, what), Some("refused".into()), "{what}: {auto}");
    }
    if auto["landlock"].is_null() {
        return magray_skip::part(magray_skip::Need::Landlock, &auto["missing"]);
    }
    for what in ["read a file of another folder", "write into a model's folder"] {
        assert_eq!(outcome(&off, what), Some("done".into()), "{what}: {off}");
        assert_eq!(outcome(&auto, what), Some("refused".into()), "{what}: {auto}");
    }
}

#[test]
fn the_sandbox_of_no_gpu_is_no_failure_but_where_a_gpu_was_named() {
    let home = Home::new();
    let answer = home.call(&["gpu", "sandbox"]).run().success();
    assert!(answer.stdout.starts_with("no GPU is used: "), "{}", answer.stdout);
    assert_eq!(home.call(&["gpu", "sandbox", "--device", "cuda:0"]).run().code, 7);
}
