//! Critics through HTTP and MCP: verdicts that fit their schemas, precedents, and critics whose device, model or time is gone.
//! The model is tiny and says nothing that makes sense; its verdicts still have to be verdicts.

use serde_json::{Value, json};

use crate::{
    chat::unchunked,
    http::Reply,
    rig::{Server, Setup, fixture},
};

const PATH: &str = "/v1/evaluate";

/// Four critics; the last has a schema of its own.
const CRITICS: &str = r#"
[cpu]
path = "portable"
[critics.ethics]
[critics.tone]
prompt = "Is it kind?"
weight = 2
[critics.truth]
prompt = "Is it true?"
weight = 0
[critics.form]
prompt = "Is it well written?"
schema = '{"type": "object", "properties": {"grade": {"enum": ["a", "b"]}, "note": {"type": "string", "maxLength": 20}, "score": {"enum": [0, 0.5, 1]}}, "required": ["grade", "note", "score"], "additionalProperties": false}'
"#;

fn start(settings: &str) -> Server {
    Setup::new(&["--device", "cpu"]).with_generator().settings(settings).start()
}

#[track_caller]
fn evaluate(server: &Server, body: Value) -> Value {
    server.post(PATH, &body.to_string()).ok().json()
}

fn critic<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["critics"].as_array().unwrap().iter().find(|critic| critic["name"] == name).unwrap()
}

fn has_length(text: &Value, least: usize, most: usize) -> bool {
    text.as_str().is_some_and(|text| (least..=most).contains(&text.chars().count()))
}

/// Whether a verdict is what the schema of its critic asks for, read by hand.
#[track_caller]
fn assert_fits(critic: &Value) {
    let (verdict, shown) = (&critic["verdict"], critic.to_string());
    assert_eq!(critic["status"], "judged", "{shown}");
    let names: Vec<&String> = verdict.as_object().unwrap().keys().collect();
    match critic["name"] == "form" {
        true => {
            assert_eq!(names, ["grade", "note", "score"], "{shown}");
            assert!(
                [json!("a"), json!("b")].contains(&verdict["grade"]) && has_length(&verdict["note"], 0, 20),
                "{shown}"
            );
            assert!([json!(0), json!(0.5), json!(1)].contains(&verdict["score"]), "{shown}");
        }
        false => {
            assert_eq!(names, ["reasons", "score"], "{shown}");
            let reasons = verdict["reasons"].as_array().unwrap();
            assert!((1..=3).contains(&reasons.len()), "{shown}");
            assert!(reasons.iter().all(|reason| has_length(reason, 1, 160)), "{shown}");
            let tenths = verdict["score"].as_f64().unwrap() * 10.0;
            assert!((0.0..=10.0).contains(&tenths) && (tenths - tenths.round()).abs() < 1e-9, "{shown}");
        }
    }
    assert_eq!(verdict["score"].as_f64(), critic["score"].as_f64(), "{shown}");
}

/// Texts of all kinds of characters; the same each time.
fn text(seed: u64) -> String {
    const WORDS: [&str; 12] = [
        "river",
        "\"quoted\"",
        "{\"score\": 1}",
        "\u{e9}t\u{e9}",
        "\u{4f60}\u{597d}",
        "\\",
        "\n\n",
        "=== text",
        "</s>",
        "<|assistant|>",
        "100 %",
        "\u{1f600}",
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut words = Vec::new();
    for _ in 0..(3 + seed % 40) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words.push(WORDS[(state % WORDS.len() as u64) as usize]);
    }
    words.join(" ")
}

/// `MAGRAY_CRITIC_VERDICTS=1000` for a long run.
#[test]
fn every_verdict_fits_the_schema_of_its_critic() {
    let wanted = std::env::var("MAGRAY_CRITIC_VERDICTS").map_or(24, |count| count.parse().unwrap());
    let server = start(CRITICS);
    let (mut verdicts, mut different) = (0, std::collections::HashSet::new());
    for seed in 0.. {
        if verdicts >= wanted {
            break;
        }
        let report = evaluate(&server, json!({"text": text(seed)}));
        for critic in report["critics"].as_array().unwrap() {
            assert_fits(critic);
            different.insert(critic["verdict"].to_string());
            verdicts += 1;
        }
        let score = |name: &str| critic(&report, name)["score"].as_f64().unwrap();
        let mean = (score("ethics") + 2.0 * score("tone") + score("form")) / 4.0;
        assert!((report["aggregate"]["score"].as_f64().unwrap() - mean).abs() < 1e-3, "{report}");
        assert_eq!(report["aggregate"]["formed_over"], json!(["ethics", "tone", "truth", "form"]));
    }
    assert!(different.len() > verdicts / 3, "{} of {verdicts} differ", different.len());
    println!("{verdicts} of {verdicts} verdicts fit their schemas; {} are different", different.len());
}

/// Tokens of prompts that were computed for these critics.
fn computed(report: &Value) -> u64 {
    let count = |critic: &Value| critic["prompt_tokens"].as_u64().unwrap() - critic["cached_tokens"].as_u64().unwrap();
    report["critics"].as_array().unwrap().iter().map(count).sum()
}

#[test]
fn four_critics_read_a_text_once() {
    let settings = "[critics.a]\nprompt = 'Is it kind?'\n[critics.b]\nprompt = 'Is it true?'\n[critics.c]\nprompt = 'Is it safe?'\n\
        [critics.d]\nprompt = 'Is it fair?'\n";
    let long = |number: u32| format!("{number} {}", &"A text of a thousand tokens. ".repeat(35)[..1000]);
    let one = computed(&evaluate(&start(settings), json!({"text": long(0), "critics": ["a"]})));
    let server = start(settings);
    // A prompt that a busy machine computes in parts shares as much of the text as the first part has whole pages of.
    let mut all = 0;
    let mut four = |number| {
        let computed = computed(&evaluate(&server, json!({"text": long(number)})));
        all += computed;
        computed
    };
    let four = (1..10).map(&mut four).find(|four| four * 2 <= one * 3);
    let four = four.expect("four critics compute at most 1.5 times the tokens of one");
    assert!(one > 1000, "{one}");
    println!("tokens of prompts that were computed: {one} for one critic, {four} for four");
    let page = server.get("/metrics").ok();
    let value = |name: &str| {
        let line = page.text().lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()
    };
    let read = value("magray_prompt_tokens_total{model=\"tiny\"}");
    assert_eq!(read - value("magray_prompt_tokens_cached_total{model=\"tiny\"}"), all);
    for line in [
        r#"magray_evaluations_total{decision="undecided"} 0"#,
        r#"magray_critic_verdicts_total{critic="a",status="judged"}"#,
        r#"magray_critic_verdicts_total{critic="a",status="late"} 0"#,
        r#"magray_critic_verdict_seconds_count{critic="d"}"#,
    ] {
        assert!(page.text().contains(line), "{line} is not in\n{}", page.text());
    }
}

#[test]
fn a_critic_whose_device_dies_is_named_and_the_others_decide() {
    let settings = "[critics.calm]\nprompt = 'Is it kind?'\ndevice = 'sim:0'\n[critics.dead]\nprompt = 'Is it true?'\n\
        device = 'sim:1'\ntimeout_s = 10\n[critics.hasty]\nprompt = 'Is it safe?'\ndevice = 'sim:0'\ntimeout_s = 0.001\nveto_below = 0.1\n\
        [critics.lost]\nprompt = 'Is it fair?'\nmodel = 'nowhere'\n";
    let setup = Setup::new(&["--device", "require-gpu", "--simulated-gpus", "2"]).with_generator().settings(settings);
    let server = setup.env("MAGRAY_FAULTS", "sim:1/crash@every=1").start();
    let said = "the critic 'lost' judges by 'nowhere', which is not served";
    assert!(server.said().contains(said), "{}", server.said());
    let report = evaluate(&server, json!({"text": "The river is wide."}));
    let error = |name: &str| critic(&report, name)["error"].as_str().unwrap_or_default().to_owned();
    assert_fits(critic(&report, "calm"));
    assert_eq!(critic(&report, "calm")["device"], "sim:0");
    assert!(critic(&report, "dead")["status"] != "judged" && !error("dead").is_empty(), "{report}");
    println!("the dead critic: {}", error("dead"));
    assert!(error("lost").contains("there is no model 'nowhere' here"), "{report}");
    assert_eq!(
        (critic(&report, "hasty")["status"].as_str(), error("hasty").as_str()),
        (Some("late"), "no verdict within 0.001 s")
    );
    for name in ["dead", "lost", "hasty"] {
        let critic = critic(&report, name);
        assert!(critic["score"].is_null() && critic["verdict"].is_null() && critic["reasons"] == json!([]), "{critic}");
    }
    let whole = &report["aggregate"];
    assert_eq!((&whole["formed_over"], &whole["missing"]), (&json!(["calm"]), &json!(["dead", "hasty", "lost"])));
    assert_eq!(whole["score"], critic(&report, "calm")["score"]);
    // The one that is late might have vetoed the text.
    assert!(whole["decision"] != "accepted", "{whole}");
    let calm = evaluate(&server, json!({"text": "The river is wide.", "critics": ["calm", "dead"]}));
    let (score, decision) = (calm["aggregate"]["score"].as_f64().unwrap(), &calm["aggregate"]["decision"]);
    assert_eq!(*decision, if score >= 0.5 { "accepted" } else { "rejected" });
    // Where every critic is refused, so is the request.
    let reply = server.post(PATH, r#"{"text": "a", "critics": ["lost"]}"#);
    assert!(
        reply.status == 404 && reply.text().contains("no critic gave a verdict: there is no model"),
        "{}",
        reply.text()
    );
}

#[test]
fn cases_are_stored_found_and_cited_by_their_ids() {
    let settings = "[critics.ethics]\n[critics.tone]\nprompt = 'Is it kind?'\n";
    let server = Setup::every_kind().settings(settings).start();
    let ask = |text: &str, more: Value| {
        let mut body = json!({"text": text, "collection": "cases"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    server.check_refused(PATH, &ask("the king", json!({})).to_string(), 404, "cases");
    let first = evaluate(&server, ask("the king of the hill", json!({"store": true})));
    assert_eq!(first["precedents"], json!([]));
    let id = first["stored"].as_str().unwrap().to_owned();
    let second = evaluate(&server, ask("the king of the hill", json!({"store": true, "precedents": 5})));
    let precedent = &second["precedents"][0];
    assert_eq!((precedent["id"].as_str(), precedent["text"].as_str()), (Some(&*id), Some("the king of the hill")));
    assert_eq!(precedent["evaluation"]["score"], first["aggregate"]["score"]);
    assert_eq!(precedent["evaluation"]["critics"]["tone"]["score"], critic(&first, "tone")["score"]);
    assert_ne!(second["stored"], first["stored"], "each evaluation is a case of its own");
    let mut cited = 0;
    for text in ["a cat by the river", "the king", "hills and rivers", "nothing at all"] {
        let report = evaluate(&server, ask(text, json!({})));
        let ids: Vec<&Value> = report["precedents"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
        assert_eq!(ids.len(), 2, "{report}");
        for critic in report["critics"].as_array().unwrap() {
            let names: Vec<&String> = critic["verdict"].as_object().unwrap().keys().collect();
            assert_eq!(names, ["reasons", "citations", "score"]);
            let citations = critic["citations"].as_array().unwrap();
            assert!(citations.iter().all(|id| ids.contains(&id)), "{critic}");
            cited += citations.len();
            for one in report["precedents"].as_array().unwrap() {
                let is_cited = one["cited_by"].as_array().unwrap().contains(&critic["name"]);
                assert_eq!(is_cited, citations.contains(&one["id"]), "{report}");
            }
        }
    }
    println!("{cited} citations");
    let count = server.post("/collections/cases/points/count", "{}").ok().json();
    assert_eq!(count["result"]["count"], 2);
}

#[test]
fn only_those_who_may_change_a_collection_store_cases() {
    let setup = Setup::every_kind().env("MAGRAY_API_KEYS", "user").env("MAGRAY_ADMIN_KEYS", "admin");
    let server = setup.settings("[critics.ethics]\n").start();
    let ask = |key: &str, body: &str| server.request("POST", PATH).key(key).body(body).send();
    let store = r#"{"text": "the king", "collection": "cases", "store": true}"#;
    assert_eq!(ask("wrong", store).status, 401);
    assert_eq!(ask("user", store).status, 403);
    ask("admin", store).ok();
    ask("user", r#"{"text": "the king", "collection": "cases"}"#).ok();
}

#[test]
fn what_cannot_be_evaluated_is_refused() {
    let server = start("");
    let long = "a".repeat(9_000);
    for (body, status, message) in [
        (json!({"text": " "}), 400, "the text is empty"),
        (json!({}), 400, "text"),
        (
            json!({"text": "a", "critics": ["nobody"]}),
            400,
            "there is no critic 'nobody'; there is ethics, fairness, safety",
        ),
        (json!({"text": "a", "critics": ["ethics", "ethics"]}), 400, "the critic 'ethics' is named twice"),
        (json!({"text": "a", "model": "none"}), 404, "there is no model 'none' here"),
        (json!({"text": "a", "store": true}), 400, "name one"),
        (json!({"text": "a", "precedents": 3}), 400, "precedents are in a collection"),
        (json!({"text": "a", "precedents": 21, "collection": "a"}), 400, "20 may be"),
        (json!({"text": "a", "collection": "none"}), 404, "none"),
        (json!({"text": "a", "criticts": []}), 400, "criticts"),
        (json!({"text": long}), 400, "no critic gave a verdict: "),
        (json!({"text": "a".repeat(2 << 20)}), 400, "bytes"),
    ] {
        server.check_refused(PATH, &body.to_string(), status, message);
    }
    assert_eq!(server.post(PATH, &json!({"text": "a".repeat(100 << 20)}).to_string()).status, 413);
    let built_in = evaluate(&server, json!({"text": "A kind text.", "critics": []}));
    assert_eq!(built_in["aggregate"]["formed_over"], json!(["ethics", "fairness", "safety"]));
    let embedder = Setup::embedder().start();
    embedder.check_refused(PATH, r#"{"text": "a"}"#, 400, "generates no text");
}

#[test]
fn wrong_critics_keep_a_server_from_starting() {
    for (settings, told) in [
        ("[critics.a]\nweight = 1\n", "critics.a: it has nothing to judge by"),
        ("[critics.ethics]\nschema = '{\"type\": \"object\"}'\n", "critics.ethics.schema: a verdict is an object"),
        ("[critics.ethics]\nschema = 'none.json'\n", "cannot read the schema"),
        ("[critics.ethics]\n[critics.ETHICS]\nprompt = 'a'\n", "there is a critic 'ethics' already"),
    ] {
        let (code, said) = Setup::embedder().settings(settings).refused();
        assert!(code == 2 && said.contains(told), "{settings}: {said}");
    }
    let server = start("[critics.ethics]\n");
    server.settings("[critics.ethics]\nweight = 3\n");
    let reloaded = server.post("/admin/reload", "").ok().json();
    assert_eq!(reloaded["needs_restart"], json!(["critics"]));
}

/// Schemas that no model can follow, or that take for ever to compile: the critic fails, and the others judge.
#[test]
fn a_schema_that_cannot_be_followed_is_its_critics_failure() {
    let bomb = |score: &str| {
        format!(
            r#"{{"type": "object", "properties": {{"x": {score}, "score": {{"enum": [0, 1]}}}}, "required": ["x", "score"]}}"#
        )
    };
    let nested = (0..100)
        .fold(r#"{"type": "integer"}"#.to_owned(), |inner, _| format!(r#"{{"type": "array", "items": {inner}}}"#));
    let pattern = r#"{"type": "string", "pattern": "(((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000})"}"#;
    let settings: String =
        [("pattern", bomb(pattern)), ("nested", bomb(&nested)), ("unknown", bomb(r#"{"type": "obj"}"#))]
            .iter()
            .map(|(name, schema)| format!("[critics.{name}]\nprompt = 'a'\ntimeout_s = 20\nschema = '''{schema}'''\n"))
            .collect();
    let server = start(&format!("{settings}[critics.ethics]\n"));
    let report = evaluate(&server, json!({"text": "a"}));
    assert_fits(critic(&report, "ethics"));
    let unknown = critic(&report, "unknown");
    assert!(unknown["error"].as_str().is_some_and(|error| error.contains("JSON schema")), "{unknown}");
    for name in ["pattern", "nested"] {
        let other = critic(&report, name);
        assert_eq!(other["score"].is_null(), other["error"].is_string(), "{other}");
    }
    assert!(report["aggregate"]["formed_over"].as_array().unwrap().contains(&json!("ethics")), "{report}");
    evaluate(&server, json!({"text": "b", "critics": ["ethics"]}));
}

fn call(server: &Server, accept: &str, arguments: Value, meta: Value) -> Reply {
    let message = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "evaluate_text", "arguments": arguments, "_meta": meta},
    });
    let request = server.request("POST", "/mcp").header("content-type", "application/json");
    request.header("accept", accept).body(message.to_string()).send().ok()
}

#[test]
fn an_agent_has_texts_evaluated_and_is_told_how_far_it_is() {
    let server = start("[cpu]\npath = \"portable\"\n");
    let whole = call(&server, "application/json", json!({"text": "A kind text."}), json!({})).json();
    let report = &whole["result"]["structuredContent"];
    assert_eq!(report["aggregate"]["formed_over"], json!(["ethics", "fairness", "safety"]), "{whole}");
    report["critics"].as_array().unwrap().iter().for_each(assert_fits);
    let same = evaluate(&server, json!({"text": "A kind text."}));
    assert_eq!(same["aggregate"], report["aggregate"], "the same text gets the same verdicts");
    let accept = "application/json, text/event-stream";
    let reply = call(&server, accept, json!({"text": "A kind text."}), json!({"progressToken": "p"}));
    let text = if reply.header("transfer-encoding").is_some() { unchunked(&reply) } else { reply.text().to_owned() };
    let data =
        text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim).filter(|data| !data.is_empty());
    let messages: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let told: Vec<&Value> = messages.iter().filter(|message| message["method"] == "notifications/progress").collect();
    let last = told.last().unwrap_or_else(|| panic!("{text}"));
    assert_eq!((&last["params"]["progress"], &last["params"]["total"]), (&json!(3.0), &json!(3.0)));
    let refused = call(&server, "application/json", json!({"text": "a", "critics": ["nobody"]}), json!({})).json();
    assert_eq!(refused["result"]["isError"], true);
    let unknown = call(&server, "application/json", json!({"text": "a", "collection": "none"}), json!({})).json();
    assert_eq!(unknown["result"]["isError"], true, "{unknown}");
}

#[test]
fn a_command_lets_a_server_evaluate() {
    let server = Setup::new(&["--device", "cpu", "--model", &fixture("bert")]).with_generator();
    let server = server.settings("[evaluate]\naccept_from = 0\n").start();
    let url = format!("http://{}", server.address);
    let said =
        server.beside(&["evaluate", "A kind text.", "--server", &url, "--collection", "cases", "--store", "--json"]);
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(report["aggregate"]["decision"], "accepted");
    assert!(report["stored"].is_string(), "{report}");
    let shown =
        server.beside(&["evaluate", "A kind text.", "--server", &url, "--collection", "cases", "--critic", "safety"]);
    assert!(shown.starts_with("safety") && shown.contains("case ") && shown.contains("accepted: "), "{shown}");
}
