//! The model context protocol, through HTTP and through stdin and stdout: tools, schemas, results, keys, hosts.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use serde_json::{Value, json};

use crate::{
    http::Reply,
    rig::{Server, Setup, fixture},
};

const TOOLS: [&str; 21] = [
    "add_documents",
    "alias_model",
    "chat",
    "clear_gpu_cache",
    "delete_model",
    "embed_texts",
    "evaluate_text",
    "get_gpu_status",
    "list_collections",
    "list_models",
    "load_model",
    "offload_gpu",
    "preheat_gpu",
    "pull_model",
    "release_gpu",
    "rerank",
    "search_collection",
    "similarity",
    "unload_model",
    "update_gpu_priority",
    "update_gpu_timeout",
];

fn hello() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    }})
}

fn call(name: &str, arguments: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": name, "arguments": arguments}})
}

/// Posts a message with what the protocol asks for, and with this header.
fn post(server: &Server, message: &Value, header: (&str, &str)) -> Reply {
    let request = server.request("POST", "/mcp").header("content-type", "application/json");
    let request = request.header("accept", "application/json, text/event-stream");
    let request = request.header("mcp-protocol-version", "2025-06-18").header(header.0, header.1);
    request.body(message.to_string()).send()
}

fn ask(server: &Server, message: &Value) -> Value {
    post(server, message, ("x-none", "")).ok().json()
}

/// The structured result of a tool, which must succeed.
#[track_caller]
fn use_tool(server: &Server, name: &str, arguments: Value) -> Value {
    let reply = ask(server, &call(name, arguments));
    let result = &reply["result"];
    assert_ne!(result["isError"], json!(true), "{reply}");
    let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(text, result["structuredContent"], "clients that know texts alone are told the same");
    text
}

#[test]
fn tools_are_described_with_schemas_and_hints() {
    let server = Setup::embedder().start();
    let hello = ask(&server, &hello());
    assert_eq!(hello["result"]["serverInfo"]["name"], json!("magray"), "{hello}");
    assert!(hello["result"]["capabilities"]["tools"].is_object());
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(post(&server, &initialized, ("x-none", "")).status, 202);
    let reply = ask(&server, &json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}));
    let tools = reply["result"]["tools"].as_array().unwrap();
    let mut names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, TOOLS);
    for tool in tools {
        let name = tool["name"].as_str().unwrap();
        assert!(!tool["description"].as_str().unwrap().is_empty(), "{name}");
        assert_eq!((&tool["inputSchema"]["type"], &tool["outputSchema"]["type"]), (&json!("object"), &json!("object")));
        let hints = &tool["annotations"];
        const READING: [&str; 9] = [
            "chat",
            "embed_texts",
            "evaluate_text",
            "get_gpu_status",
            "list_collections",
            "list_models",
            "rerank",
            "search_collection",
            "similarity",
        ];
        let changes = !READING.contains(&name);
        assert_eq!(hints["readOnlyHint"], json!(!changes), "{name}");
        let destroys = ["delete_model", "release_gpu", "unload_model"].contains(&name);
        assert_eq!(hints["destructiveHint"], json!(destroys), "{name}");
        let is_over = ["delete_model", "unload_model"].contains(&name);
        assert_eq!(hints["idempotentHint"], json!(!is_over), "{name}");
    }
    let timeout = tools.iter().find(|tool| tool["name"] == "update_gpu_timeout").unwrap();
    assert_eq!(timeout["inputSchema"]["required"], json!(["timeout_seconds"]));
}

#[test]
fn agents_embed_compare_and_rank() {
    let server = Setup::all_kinds().start();
    let embedded = use_tool(&server, "embed_texts", json!({"texts": ["river", "cat"]}));
    let same = server.post("/embed", r#"{"inputs":["river","cat"]}"#).ok().json();
    assert_eq!(
        (&embedded["embeddings"], &embedded["model"], &embedded["device"]),
        (&same, &json!("bert"), &json!("cpu"))
    );
    let short = use_tool(&server, "embed_texts", json!({"texts": ["river"], "dimensions": 3, "model": "bert"}));
    assert_eq!((short["embeddings"][0].as_array().unwrap().len(), &short["dimensions"]), (3, &json!(3)));
    let arguments = json!({"source_sentence": "river", "sentences": ["cat", "river"]});
    let compared = use_tool(&server, "similarity", arguments);
    assert!((compared["similarities"][1].as_f64().unwrap() - 1.0).abs() < 1e-3, "{compared}");
    let ranked = use_tool(&server, "rerank", json!({"query": "a", "documents": ["b", "c", "d"], "top_n": 2}));
    let results = ranked["results"].as_array().unwrap();
    assert_eq!((results.len(), &ranked["model"]), (2, &json!("xlm-roberta-classify")));
    let place = results[0]["index"].as_u64().unwrap() as usize;
    assert_eq!(results[0]["document"], json!(["b", "c", "d"][place]));
    let models = use_tool(&server, "list_models", json!({}));
    let does: Vec<&str> =
        models["models"].as_array().unwrap().iter().map(|model| model["does"].as_str().unwrap()).collect();
    assert_eq!(does, ["embed", "rank", "classify"]);
}

#[test]
fn agents_put_documents_into_collections_and_find_them() {
    let server = Setup::all_kinds().start();
    assert_eq!(use_tool(&server, "list_collections", json!({})), json!({"collections": []}));
    let documents = json!([
        {"text": "the king of the hill", "id": "7", "fields": {"author": "Ann"}},
        {"text": "a cat by the river"},
    ]);
    let added = use_tool(&server, "add_documents", json!({"collection": "notes", "documents": documents}));
    assert_eq!(added, json!({"collection": "notes", "documents": 2}));
    let listed = use_tool(&server, "list_collections", json!({}));
    assert_eq!(listed["collections"], json!([{"name": "notes", "documents": 2, "model": "bert"}]));
    for (hybrid, rerank) in [(false, false), (true, false), (true, true)] {
        let asked = json!({"collection": "notes", "query": "the king of the hill", "hybrid": hybrid, "rerank": rerank, "limit": 1,
            "filter": {"must": [{"key": "author", "match": {"value": "Ann"}}]}});
        let found = use_tool(&server, "search_collection", asked);
        let first = &found["results"][0];
        assert_eq!((&first["id"], &first["document"]["author"]), (&json!("7"), &json!("Ann")), "{found}");
        assert_eq!(first["snippet"], json!("the **king** of the **hill**"));
    }
}

#[test]
fn agents_move_models_on_and_off_the_gpu() {
    let server = Setup::on_gpu("").start();
    let location = || use_tool(&server, "get_gpu_status", json!({}))["models"][0]["location"].clone();
    assert_eq!(location(), json!("unloaded"));
    use_tool(&server, "preheat_gpu", json!({}));
    assert_eq!(location(), json!("gpu"));
    let moved = use_tool(&server, "offload_gpu", json!({"model": "bert"}));
    assert_eq!((&moved["models"][0]["name"], location()), (&json!("bert"), json!("cpu")));
    use_tool(&server, "release_gpu", json!({}));
    assert_eq!(location(), json!("unloaded"));
    let timeout = || use_tool(&server, "get_gpu_status", json!({}))["models"][0]["idle_timeout_s"].clone();
    assert_eq!(use_tool(&server, "update_gpu_timeout", json!({"timeout_seconds": 30}))["timeout"], json!(30.0));
    assert_eq!(timeout(), json!(30.0));
    use_tool(&server, "update_gpu_timeout", json!({"timeout_seconds": "never", "model": "bert"}));
    assert_eq!(timeout(), Value::Null);
}

#[test]
fn a_wrong_call_is_an_error_in_the_result_of_the_tool() {
    let server = Setup::all_kinds().start();
    for (tool, arguments, message) in [
        ("embed_texts", json!({"texts": []}), "no text"),
        ("embed_texts", json!({"texts": ["a"], "model": "gpt"}), "no model 'gpt'"),
        ("embed_texts", json!({"texts": ["a"], "model": "bert-classify"}), "no vectors"),
        ("embed_texts", json!({"texts": ["a"], "dimensions": 0}), "dimensions"),
        ("similarity", json!({"source_sentence": "a", "sentences": []}), "no text"),
        ("rerank", json!({"query": "a", "documents": ["b"], "top_n": 0}), "top_n"),
        ("update_gpu_timeout", json!({"timeout_seconds": -1}), "from 0 on"),
        ("offload_gpu", json!({"model": "gpt"}), "no model 'gpt'"),
    ] {
        let reply = ask(&server, &call(tool, arguments));
        let told = reply["result"]["content"][0]["text"].as_str().unwrap_or_default();
        assert!(reply["result"]["isError"] == json!(true) && told.contains(message), "{tool}: {reply}");
    }
    // What does not fit the schema is told to the agent too; a tool that there is not is an error of the protocol.
    for arguments in [json!({}), json!({"texts": "a"})] {
        let reply = ask(&server, &call("embed_texts", arguments));
        let told = reply["result"]["content"][0]["text"].as_str().unwrap_or_default();
        let expected = "the parameters of the tool 'embed_texts' do not fit: ";
        assert!(reply["result"]["isError"] == json!(true) && told.starts_with(expected), "{reply}");
    }
    let reply = ask(&server, &call("none", json!({})));
    assert_eq!(reply["error"]["code"], json!(-32602));
    assert!(reply["error"]["message"].as_str().unwrap().contains("no tool 'none' for tools/call"), "{reply}");
    // There are tools alone: what is not declared is not answered, not even with an empty list.
    for method in ["no/such", "prompts/list", "resources/list", "resources/templates/list"] {
        let reply = ask(&server, &json!({"jsonrpc": "2.0", "id": 3, "method": method}));
        assert_eq!(reply["error"]["code"], json!(-32601), "{method}");
        let told = reply["error"]["message"].as_str().unwrap();
        assert!(told.starts_with(&format!("there is no method '{method}'")), "{told}");
    }
}

#[test]
fn what_changes_something_needs_a_key_of_an_administrator() {
    let setup = Setup::embedder().env("MAGRAY_API_KEYS", "one").env("MAGRAY_ADMIN_KEYS", "boss");
    let server = setup.start();
    let with = |key: &str, message: &Value| post(&server, message, ("authorization", &format!("Bearer {key}")));
    let embed = call("embed_texts", json!({"texts": ["river"]}));
    assert_eq!((with("none", &embed).status, post(&server, &embed, ("x-none", "")).status), (401, 401));
    assert_ne!(with("one", &embed).ok().json()["result"]["isError"], json!(true));
    let arguments = [
        ("clear_gpu_cache", json!({})),
        ("offload_gpu", json!({})),
        ("preheat_gpu", json!({})),
        ("release_gpu", json!({})),
        ("update_gpu_timeout", json!({"timeout_seconds": 5})),
    ];
    for (tool, arguments) in arguments {
        let message = call(tool, arguments);
        let refused = with("one", &message).ok().json();
        assert_eq!(refused["result"]["isError"], json!(true), "{tool}: {refused}");
        assert!(refused["result"]["content"][0]["text"].as_str().unwrap().contains("administrator"), "{refused}");
        assert_ne!(with("boss", &message).ok().json()["result"]["isError"], json!(true), "{tool}");
    }
}

#[test]
fn pages_and_names_of_elsewhere_are_turned_away() {
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    let from = |server: &Server, host: &str, origin: Option<&str>| {
        let body = list.to_string();
        let origin = origin.map(|origin| format!("origin: {origin}\r\n")).unwrap_or_default();
        let text = format!(
            "POST /mcp HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\n{origin}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = crate::http::connect(server.address);
        stream.write_all(text.as_bytes()).unwrap();
        Reply::read(&mut stream).unwrap().status
    };
    let server = Setup::embedder().start();
    assert_eq!(from(&server, "localhost", None), 200);
    assert_eq!(from(&server, "127.0.0.1:7860", Some("http://localhost:6274")), 200);
    assert_eq!(from(&server, "rebound.example", None), 403);
    assert_eq!(from(&server, "localhost", Some("https://page.example")), 403);
    let named = "[server]\nallowed_hosts = [\"gpu.example\"]\ncors_origins = \"https://page.example\"\n";
    let named = Setup::embedder().settings(named).start();
    assert_eq!(from(&named, "gpu.example", Some("https://page.example")), 200);
    assert_eq!(from(&named, "other.example", None), 403);
    let open = Setup::embedder().settings("[server]\nallowed_hosts = [\"*\"]\ncors_origins = \"*\"\n").start();
    assert_eq!(from(&open, "any.example", Some("https://any.example")), 200);
}

#[test]
fn what_is_no_message_is_refused() {
    let server = Setup::embedder().settings("[server]\nbody_bytes_max = 4096\n").start();
    for (body, code) in [
        ("", -32700),
        ("{", -32700),
        ("what?", -32700),
        ("\u{0}", -32700),
        ("null", -32600),
        ("[]", -32600),
        ("{}", -32600),
        (r#"{"jsonrpc":"1.0"}"#, -32600),
    ] {
        let request = server.request("POST", "/mcp").header("content-type", "application/json");
        let reply = request.header("accept", "application/json, text/event-stream").body(body).send();
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!(code)), "{body:?}: {}", reply.text());
        assert_eq!((&reply.json()["jsonrpc"], &reply.json()["id"]), (&json!("2.0"), &Value::Null), "{body:?}");
    }
    let large = call("embed_texts", json!({"texts": ["river ".repeat(2000)]}));
    assert_eq!(post(&server, &large, ("x-none", "")).status, 413);
    assert_eq!(server.post("/mcp", "{}").status, 406);
    assert_eq!((server.get("/mcp").status, server.request("DELETE", "/mcp").send().status), (405, 405));
}

/// An agent that has started `magray mcp`.
struct Agent {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    _home: tempfile::TempDir,
}

impl Agent {
    fn start(args: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_magray"));
        command.args(["mcp", "--threads", "1", "--model", &fixture("bert")]).args(args).env_clear();
        command.current_dir(home.path()).env("HOME", home.path()).env("MAGRAY_LOG", "debug");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, stdin, stdout, _home: home }
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    fn ask(&mut self, message: &Value) -> Value {
        self.say(message);
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        let reply: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!((&reply["jsonrpc"], &reply["id"]), (&json!("2.0"), &message["id"]), "{reply}");
        reply
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_agent_talks_through_stdin_and_stdout_until_it_closes_them() {
    let mut agent = Agent::start(&["--device", "require-gpu", "--simulated-gpus", "1"]);
    assert_eq!(agent.ask(&hello())["result"]["serverInfo"]["name"], json!("magray"));
    agent.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    let tools = agent.ask(&json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}));
    assert_eq!(tools["result"]["tools"].as_array().unwrap().len(), TOOLS.len());
    let embedded = agent.ask(&call("embed_texts", json!({"texts": ["river"]})));
    assert_eq!(embedded["result"]["structuredContent"]["device"], json!("sim:0"), "{embedded}");
    // The process that started it may administer it.
    let moved = agent.ask(&call("offload_gpu", json!({})));
    assert_eq!(moved["result"]["structuredContent"]["models"][0]["name"], json!("bert"), "{moved}");
    // A line that is no message is answered and costs nothing.
    writeln!(agent.stdin.as_mut().unwrap(), "what?").unwrap();
    let mut line = String::new();
    agent.stdout.read_line(&mut line).unwrap();
    let refused: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&refused["error"]["code"], &refused["id"]), (&json!(-32700), &Value::Null), "{line}");
    let status = agent.ask(&call("get_gpu_status", json!({})));
    assert!(status["result"]["structuredContent"]["models"][0]["location"].is_string(), "{status}");
    drop(agent.stdin.take());
    assert!(agent.child.wait().unwrap().success());
    let mut rest = String::new();
    agent.stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "nothing but answers stands on stdout");
}

#[test]
fn an_agent_that_leaves_without_a_word_is_no_failure() {
    let mut agent = Agent::start(&["--device", "cpu"]);
    drop(agent.stdin.take());
    assert!(agent.child.wait().unwrap().success());
}
