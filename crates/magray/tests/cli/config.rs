//! `magray config` and the settings of all commands, through the real environment of a process.
//! The rules of merging are tested beside the code.

use expect_test::expect;

use crate::runner::Home;

#[test]
fn values_show_where_they_came_from() {
    let home = Home::new();
    home.write("magray.yaml", "embed:\n  precision: int8\ncpu:\n  threads: 3\n");
    let answer = home.call(&["config"]).env("MAGRAY_THREADS", "2").env("HF_TOKEN", "hf_verysecret").run().success();
    // The columns are as wide as the name of the home folder, which differs from run to run.
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = answer.stdout.lines().filter(|line| !line.starts_with("gpu")).map(squeezed).collect();
    expect![[r#"
        file: HOME/here/magray.yaml

        key value source
        model.name all-MiniLM-L6-v2 default
        model.backend auto default
        model.store HOME/.local/share/magray default
        model.source auto default
        model.endpoint http://127.0.0.1:1 env HF_ENDPOINT
        model.token (hidden) env HF_TOKEN
        cpu.threads 2 env MAGRAY_THREADS
        cpu.path auto default
        chat.model SmolLM2-135M-Instruct default
        evaluate.accept_from 0.5 default
        chat.kv_bits 16 default
        chat.gpu_layers auto default
        chat.speculate 0 default
        embed.device auto default
        embed.precision int8 file HOME/here/magray.yaml:2
        embed.prompt default default
        embed.max_text_bytes 1048576 default
        client.api_key none default
        queue.requests_max 16384 default
        queue.tokens_max 4194304 default
        faults.plan none default
        onnx.library none default
        search.folder HOME/.local/share/magray/collections default
        search.gpu_from_mib 16 default
        control.folder none default
        log.level warn default
        log.format text default
        log.profile none default
        server.host 127.0.0.1 default
        server.port 7860 default
        server.models none default
        server.aliases none default
        server.openai_token_file none default
        server.api_keys none default
        server.api_keys_file none default
        server.admin_keys none default
        server.admin_keys_file none default
        server.requests_per_minute none default
        server.tokens_per_minute none default
        server.high_priority_keys none default
        server.tls_cert none default
        server.tls_key none default
        server.cors_origins none default
        server.allowed_hosts [] default
        server.body_bytes_max 16777216 default
        server.held_bytes_max 134217728 default
        server.queue_wait_s 30 default
        server.text_cache 100000 default
        server.texts_max 2048 default
        server.text_bytes_max 1048576 default
        server.tokens_max 1048576 default
        server.truncate true default
        server.connections_max 4096 default
        server.head_timeout_s 30 default
        server.body_timeout_s 30 default
        server.request_timeout_s 60 default
        server.drain_delay_s 0 default
        server.drain_timeout_s 30 default
        server.vllm_metrics false default
        server.tracing.otlp_endpoint none default
        critics.ethics.prompt built in default
        critics.ethics.model default default
        critics.ethics.device default default
        critics.ethics.weight 1 default
        critics.ethics.veto_below never default
        critics.ethics.schema default default
        critics.ethics.timeout_s 60 default
        critics.fairness.prompt built in default
        critics.fairness.model default default
        critics.fairness.device default default
        critics.fairness.weight 1 default
        critics.fairness.veto_below never default
        critics.fairness.schema default default
        critics.fairness.timeout_s 60 default
        critics.safety.prompt built in default
        critics.safety.model default default
        critics.safety.device default default
        critics.safety.weight 1 default
        critics.safety.veto_below never default
        critics.safety.schema default default
        critics.safety.timeout_s 60 default"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn one_setting_is_printed_alone() {
    let home = Home::new();
    let get = |args: &[&str]| home.call(args).env("MAGRAY_THREADS", "2").env("HF_TOKEN", "hf_verysecret").run();
    assert_eq!(get(&["config", "get", "cpu.threads"]).success().stdout, "2\n");
    assert_eq!(get(&["config", "get", "cpu.path", "--json"]).success().stdout, "null\n");
    assert_eq!(get(&["config", "get", "model.token"]).success().stdout, "(hidden)\n");
    get(&["config", "get", "cpu.thread"]).check_refused(
        2,
        expect![[r#"
        error: unknown key 'cpu.thread'; did you mean 'cpu.threads'?
    "#]],
    );
}

#[test]
fn a_file_to_start_from_changes_nothing_and_replaces_none() {
    let home = Home::new();
    let before = home.call(&["config"]).run().success().stdout;
    let answer = home.call(&["config", "init"]).run().success();
    assert_eq!(answer.stdout, "HOME/.config/magray/config.toml\n");
    let after = home.call(&["config"]).run().success().stdout;
    assert_eq!(after, before.replace("file: none found", "file: HOME/.config/magray/config.toml"));
    home.call(&["config", "init"]).run().check_refused(
        2,
        expect![[r#"
        error: HOME/.config/magray/config.toml is there already: --force replaces it
    "#]],
    );
    home.call(&["config", "init", "here.toml"]).run().success();
    home.call(&["config", "init", "here.toml", "--force"]).run().success();
    let file = std::fs::read_to_string(home.path("here.toml")).unwrap();
    assert!(file.contains("[embed]\n") && file.contains("\n#precision = \"auto\"\n"), "{file}");
}

#[test]
fn a_variable_that_means_nothing_is_told() {
    let home = Home::new();
    let call = home.call(&["config", "get", "cpu.threads"]).env("MAGRAY_THREAD", "2").env("MAGRAY_SERVICE_HOST", "x");
    let answer = call.env("MAGRAY_COLOUR_OF_THE_SEA", "blue").run().success();
    expect![[r#"
        warning: the variable MAGRAY_COLOUR_OF_THE_SEA means nothing; `magray config` lists the settings
        warning: the variable MAGRAY_THREAD means nothing; did you mean MAGRAY_THREADS?
    "#]]
    .assert_eq(&answer.stderr);
}

#[test]
fn json_has_every_setting_and_no_secret() {
    let home = Home::new();
    let call = home.call(&["config", "--json"]).env("HF_TOKEN", "hf_verysecret").env("ONNX_GPU_MEM_LIMIT", "4096");
    let answer = call.run().success();
    assert!(!answer.stdout.contains("verysecret"));
    let json: serde_json::Value = serde_json::from_str(&answer.stdout).unwrap();
    let setting = &json["settings"]["gpu.memory_limit_mb"];
    assert_eq!(setting["value"], 4096);
    assert_eq!(setting["source"], "env ONNX_GPU_MEM_LIMIT");
    assert_eq!(json["settings"]["cpu.threads"]["value"], serde_json::Value::Null);
}

#[test]
fn files_are_found_in_their_order() {
    let home = Home::new();
    let file_of = |call: crate::runner::Call| call.run().success().stdout.lines().next().unwrap_or_default().to_owned();
    assert_eq!(file_of(home.call(&["config"])), "file: none found");
    std::fs::create_dir_all(home.path("xdg/magray")).unwrap();
    home.write("xdg/magray/config.toml", "");
    let xdg = home.path("xdg");
    assert_eq!(file_of(home.call(&["config"]).env("XDG_CONFIG_HOME", &xdg)), "file: HOME/here/xdg/magray/config.toml");
    home.write("magray.yml", "");
    assert_eq!(file_of(home.call(&["config"]).env("XDG_CONFIG_HOME", &xdg)), "file: HOME/here/magray.yml");
    home.write("magray.toml", "");
    assert_eq!(file_of(home.call(&["config"])), "file: HOME/here/magray.toml");
    home.write("named.toml", "");
    assert_eq!(file_of(home.call(&["config"]).env("MAGRAY_CONFIG", "named.toml")), "file: named.toml");
    let both = home.call(&["--config", "magray.yml", "config"]).env("MAGRAY_CONFIG", "named.toml");
    assert_eq!(file_of(both), "file: magray.yml");
}

#[test]
fn a_bad_setting_stops_every_command() {
    let home = Home::new();
    for args in
        [&["embed", "x"][..], &["models"], &["pull"], &["config"], &["bench", "embed"], &["similarity", "a", "b"]]
    {
        let answer = home.call(args).env("GPU_IDLE_TIMEOUT", "soon").run();
        answer.check_refused(
            2,
            expect![[r#"
                error: GPU_IDLE_TIMEOUT: 'soon' is not allowed; use a whole number from 0 to 1000000000, or never
            "#]],
        );
    }
}

#[test]
fn bad_files_and_flags_are_named() {
    let home = Home::new();
    home.write("magray.toml", "[embed]\nprecison = 'f32'\n");
    home.check_refused(
        &["config"],
        2,
        expect![[r#"
        error: HOME/here/magray.toml:2: unknown key 'embed.precison'; did you mean 'embed.precision'?
    "#]],
    );
    home.check_refused(
        &["--config", "nowhere.toml", "config"],
        2,
        expect![[r#"
        error: cannot read the configuration nowhere.toml (named by --config): No such file or directory (os error 2)
    "#]],
    );
    let home = Home::new();
    home.check_refused(
        &["embed", "--precision", "fp8", "x"],
        2,
        expect![[r#"
        error: --precision: 'fp8' is not allowed; use one of auto, f32, tf32, f16, bf16, int8
    "#]],
    );
    home.check_refused(
        &["embed", "--device", "gpu", "x"],
        2,
        expect![[r#"
        error: --device: 'gpu' is not allowed; use auto, prefer-gpu, require-gpu, cpu, cuda, cuda:NUMBER or cuda:UUID
    "#]],
    );
    home.check_refused(
        &["embed", "--max-text-bytes", "0", "x"],
        2,
        expect![[r#"
        error: --max-text-bytes: '0' is not allowed; use a whole number from 1 to 1073741824
    "#]],
    );
}
