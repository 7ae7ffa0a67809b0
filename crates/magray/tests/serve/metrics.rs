//! What Prometheus reads: every figure that is promised, names by its rules, and a dashboard and alerts that use no others.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::rig::{Setup, wait_for};

/// The metrics of a page by name, each with the names of its labels.
type Metrics = BTreeMap<String, BTreeSet<String>>;

/// All that a server shows that has a GPU and has computed, refused and fallen back.
fn shown() -> String {
    let server = Setup::on_gpu("").with_generator().start();
    server.post("/embed", r#"{"inputs":["river","cat"]}"#).ok();
    assert_eq!(server.post("/embed", "{").status, 400);
    let page = || server.get("/metrics").ok().text().to_owned();
    // Telemetry has looked by then.
    wait_for("telemetry", || page().contains("magray_device_temperature_celsius"));
    page()
}

/// The metrics of a page. A histogram is shown by its three parts, and is one metric.
fn metrics(page: &str) -> Metrics {
    let mut metrics = Metrics::new();
    for line in page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels = labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty());
        let names = labels.map(|label| label.split_once('=').unwrap().0.to_owned());
        metrics.entry(name.to_owned()).or_default().extend(names);
    }
    metrics
}

#[test]
fn every_figure_that_is_promised_is_there() {
    let page = shown();
    for figure in [
        r#"magray_requests_total{model="bert"} 1"#,
        r#"magray_texts_total{model="bert"} 2"#,
        r#"magray_batch_texts_count 1"#,
        r#"magray_queue_seconds_count 1"#,
        r#"magray_queue_predicted_seconds 0"#,
        r#"magray_read_seconds_count 1"#,
        r#"magray_compute_seconds_count 1"#,
        r#"magray_fallbacks_total{reason="unhealthy"} 0"#,
        r#"magray_device_state{device="sim:0",state="in_rotation"} 1"#,
        r#"magray_device_state{device="sim:0",state="out"} 0"#,
        r#"magray_device_temperature_celsius{device="sim:0"} 40"#,
        r#"magray_device_power_watts{device="sim:0"} 75"#,
        r#"magray_device_utilisation_ratio{device="sim:0"} 0"#,
        r#"magray_model_residency{model="bert",device="sim:0",state="on_gpu"} 1"#,
        r#"magray_worker_restarts_total{device="sim:0"} 0"#,
        r#"magray_http_connections_refused_total 0"#,
    ] {
        assert!(page.contains(figure), "{figure} is not in\n{page}");
    }
    for name in
        [r#"magray_tokens_total{model="bert"}"#, "magray_device_memory_allocated_bytes", "magray_pool_used_bytes"]
    {
        let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}\n{page}"));
        assert!(line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() > 0.0, "{line}");
    }
}

#[test]
fn names_of_vllm_are_there_where_they_are_wanted() {
    let plain = Setup::embedder().start();
    assert!(!plain.get("/metrics").ok().text().contains("vllm:"));
    // The device hangs with its first batch, so that one request is computed and others wait.
    let server = Setup::on_gpu("hang@batch=1").settings("[server]\nvllm_metrics = true\n").start();
    assert!(server.get("/metrics").ok().text().contains("\nvllm:num_requests_running 0\n"));
    let request = || server.request("POST", "/embed").body(r#"{"inputs":"river"}"#).begin();
    let _first = request();
    let mut page = String::new();
    wait_for("the first request", || {
        page = server.get("/metrics").ok().text().to_owned();
        page.contains("\nvllm:num_requests_running 1\n")
    });
    for figure in ["\nvllm:num_requests_waiting 0\n", "\nvllm:kv_cache_usage_perc 0\n"] {
        assert!(page.contains(figure), "{figure} is not in\n{page}");
    }
}

#[test]
fn names_follow_the_rules() {
    let page = shown();
    let kinds: BTreeMap<&str, &str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    for name in metrics(&page).keys() {
        let ending = ["_bucket", "_sum", "_count"].iter().find_map(|ending| name.strip_suffix(ending));
        let histogram = ending.filter(|name| kinds.get(name) == Some(&"histogram"));
        let name = histogram.unwrap_or(name);
        let kind = kinds.get(name).unwrap_or_else(|| panic!("{name} has no type"));
        assert_eq!(name.ends_with("_total"), *kind == "counter", "{name} is a {kind}");
        assert!(page.contains(&format!("# HELP {name} ")), "{name} is not described");
        assert_eq!(page.matches(&format!("# TYPE {name} ")).count(), 1, "{name}");
        assert!(name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_'), "{name}");
        for word in name.split('_') {
            let other_units = ["milliseconds", "ms", "minutes", "hours", "kilobytes", "mb", "percent", "milliwatts"];
            assert!(!other_units.contains(&word), "{name} is not in base units");
        }
    }
}

/// A metric that an expression uses, with the labels that it chooses by.
fn used_in(text: &str) -> Metrics {
    let mut used = Metrics::new();
    let mut rest = text;
    while let Some(at) = rest.find("magray_") {
        rest = &rest[at..];
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let chosen = after.strip_prefix('{').and_then(|after| after.split_once('}')).map_or("", |(chosen, _)| chosen);
        let labels = chosen.split(',').filter_map(|label| label.split_once(['=', '!'])).map(|(label, _)| label.trim());
        used.entry(name.to_owned()).or_default().extend(labels.map(str::to_owned));
        rest = after;
    }
    used
}

#[test]
fn the_dashboard_and_the_alerts_use_nothing_that_is_not_there() {
    let there = metrics(&shown());
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    for file in ["grafana/magray.json", "prometheus/magray.rules.yml"] {
        let used = used_in(&fs::read_to_string(deploy.join(file)).unwrap());
        assert!(used.len() > 5, "{file} was not understood: {used:?}");
        for (name, labels) in used {
            let known = there.get(&name).unwrap_or_else(|| panic!("{file}: there is no {name}"));
            // Prometheus adds two.
            let strange =
                labels.iter().find(|label| !known.contains(*label) && !["instance", "job"].contains(&label.as_str()));
            assert_eq!(strange, None, "{file}: {name} has no such label");
        }
    }
}
