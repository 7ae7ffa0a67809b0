//! Collections by commands: documents in, found, listed, exported, imported and deleted; in a folder and by a server.

use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::runner::{Answer, Home, fixture};

const DOCUMENTS: &str = r#"{"id": 1, "text": "a cat by the river", "author": "Ann"}
{"id": "two", "text": "the king of the hill", "author": "Bob"}
"boats under the bridge"
"#;

fn run(home: &Home, args: &[&str]) -> Answer {
    let model = fixture("bert");
    let mut all = args.to_vec();
    all.extend(["--model", &model, "--device", "cpu", "--threads", "1"]);
    home.call(&all).run()
}

fn filled() -> Home {
    let home = Home::new();
    home.write("documents.jsonl", DOCUMENTS);
    let added = run(&home, &["index", "add", "notes", "-f", "documents.jsonl"]).success();
    assert!(added.stderr.contains("3 documents are in notes"), "{}", added.stderr);
    home
}

fn lines(answer: &Answer) -> Vec<Value> {
    answer.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn documents_are_added_listed_found_and_deleted() {
    let home = filled();
    let listed = run(&home, &["index", "ls"]).success();
    assert!(listed.stdout.starts_with("notes  3 points"), "{}", listed.stdout);
    let found = run(&home, &["search", "notes", "a cat by the river", "--limit", "2"]).success();
    assert_eq!(found.stdout.lines().count(), 2, "{}", found.stdout);
    let texts = ["a cat by the river", "the king of the hill", "boats under the bridge"];
    assert!(found.stdout.lines().all(|line| texts.iter().any(|text| line.ends_with(text))), "{}", found.stdout);
    // The same documents again are the same points.
    run(&home, &["index", "add", "notes", "-f", "documents.jsonl"]).success();
    assert!(run(&home, &["index", "ls"]).success().stdout.starts_with("notes  3 points"));
    run(&home, &["index", "rm", "notes"]).success();
    assert_eq!(run(&home, &["index", "ls"]).success().stdout, "");
    let gone = run(&home, &["search", "notes", "cat"]);
    assert!(gone.code == 3 && gone.stderr.contains("notes"), "{}", gone.stderr);
}

#[test]
fn a_search_goes_by_words_filters_and_reranks() {
    let home = filled();
    let words = run(&home, &["search", "notes", "kings", "--hybrid", "--json"]).success();
    let found = lines(&words);
    assert_eq!(found[0]["payload"]["author"], json!("Bob"), "{}", words.stdout);
    assert_eq!(found[0]["snippet"], json!("the **king** of the hill"));
    let filter = r#"{"must": [{"key": "author", "match": {"value": "Ann"}}]}"#;
    let filtered = run(&home, &["search", "notes", "hill", "--filter", filter, "--json"]).success();
    assert_eq!(lines(&filtered).iter().map(|line| &line["id"]).collect::<Vec<_>>(), [&json!(1)]);
    let reranker = fixture("xlm-roberta-classify");
    let args = ["search", "notes", "hill", "--hybrid", "--rerank", "--reranker", &reranker, "--json"];
    let scores: Vec<f64> =
        lines(&run(&home, &args).success()).iter().map(|line| line["score"].as_f64().unwrap()).collect();
    assert!(scores.len() == 3 && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    assert!(scores.iter().all(|score| (0.0..=1.0).contains(score)), "{scores:?}");
    let wrong = run(&home, &["search", "notes", "hill", "--filter", "{"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("--filter"), "{}", wrong.stderr);
}

#[test]
fn a_collection_goes_out_and_comes_back_with_its_vectors() {
    let home = filled();
    let exported = |name: &str, file: &str| {
        run(&home, &["index", "export", name, "--output", file]).success();
        std::fs::read_to_string(home.path(file)).unwrap()
    };
    let before = exported("notes", "notes.jsonl");
    assert_eq!(before.lines().count(), 3);
    run(&home, &["index", "import", "copy", "notes.jsonl"]).success();
    assert_eq!(exported("copy", "copy.jsonl"), before);
    run(&home, &["index", "export", "notes", "--output", "array.npy"]).success();
    assert!(home.names().contains(&"array.jsonl".to_owned()));
    run(&home, &["index", "import", "again", "array.npy"]).success();
    assert_eq!(exported("again", "again.jsonl"), before);
    let damaged = home.write("bad.jsonl", "{\"id\": 1\n");
    let refused = run(&home, &["index", "import", "copy", damaged.to_str().unwrap()]);
    assert!(refused.code == 3 && refused.stderr.contains("bad.jsonl, line 1"), "{}", refused.stderr);
}

#[test]
fn a_collection_goes_out_as_parquet_and_comes_back_with_its_settings() {
    let home = filled();
    let exported = |name: &str| lines(&run(&home, &["index", "export", name]).success());
    run(&home, &["index", "export", "notes", "--output", "notes.parquet"]).success();
    run(&home, &["index", "import", "copy", "notes.parquet"]).success();
    assert_eq!(exported("copy"), exported("notes"));
    // The model is remembered, too.
    let found = lines(&run(&home, &["search", "copy", "kings", "--hybrid", "--json"]).success());
    assert_eq!(found[0]["payload"]["author"], json!("Bob"));
    let whole = std::fs::read(home.path("notes.parquet")).unwrap();
    home.write("cut.parquet", &whole[..whole.len() / 2]);
    let refused = run(&home, &["index", "import", "copy", "cut.parquet"]);
    assert!(refused.code == 3 && refused.stderr.contains("cut.parquet: no Parquet file"), "{}", refused.stderr);
    assert_eq!(exported("copy").len(), 3, "nothing is lost");
}

#[test]
fn tables_of_others_become_points() {
    let home = Home::new();
    // Written by pyarrow, packed by snappy, in two groups of rows; its vectors are lists of a fixed size.
    home.write("posts.parquet", include_bytes!("files/posts.parquet"));
    let columns = ["--id-column", "key", "--text-column", "body", "--vector-column", "emb"];
    let import = |columns: &[&str]| run(&home, &[&["index", "import", "posts", "posts.parquet"], columns].concat());
    let refused = import(&[]);
    assert!(
        refused.code == 2 && refused.stderr.contains("--vector-column; there are key, body, emb"),
        "{}",
        refused.stderr
    );
    import(&columns).success();
    let points = lines(&run(&home, &["index", "export", "posts"]).success());
    assert_eq!(points.len(), 3);
    let of = |n: u64| points.iter().find(|point| point["payload"]["n"] == n).unwrap();
    assert_eq!((&of(1)["id"], &of(3)["id"]), (&json!("c56a4180-65aa-42ec-a945-5fd21dec0538"), &json!(7)));
    let expected =
        json!({"text": "a cat by the river", "when": "2020-01-02T03:04:05.000000Z", "tags": ["x", "y"], "n": 1});
    assert_eq!((&of(1)["payload"], &of(1)["vector"]), (&expected, &json!([1.0, 0.0])));
    assert_eq!(of(2)["payload"], json!({"text": "the king of the hill", "id": "post-2", "tags": [], "n": 2}));
    assert_eq!(of(3)["payload"], json!({"when": "2021-01-01T00:00:00.000000Z", "n": 3}));
    // Vectors of several lengths, and a list of many pages, that pyarrow wrote.
    home.write("ragged.parquet", include_bytes!("files/ragged.parquet"));
    let refused = run(&home, &["index", "import", "ragged", "ragged.parquet"]);
    let reason = "ragged.parquet, row 2: column 'vector' has 1 numbers, and before it were 2";
    assert!(refused.code == 3 && refused.stderr.contains(reason), "{}", refused.stderr);
    home.write("pages.parquet", include_bytes!("files/pages.parquet"));
    run(&home, &["index", "import", "pages", "pages.parquet"]).success();
    let points = lines(&run(&home, &["index", "export", "pages"]).success());
    let vectors = [298, 299].map(|at| points[at]["vector"].clone());
    assert_eq!((points.len(), vectors), (300, [json!([1.0, 0.0]), json!([0.0, 1.0])]));
    // A page of 600 MiB in 20 KB.
    home.write("bomb.parquet", include_bytes!("files/bomb.parquet"));
    let refused = run(&home, &["index", "import", "bomb", "bomb.parquet"]);
    assert!(refused.code == 3 && refused.stderr.contains("row 1: a page should have"), "{}", refused.stderr);
    // And so do the vectors of `magray embed`.
    run(&home, &["embed", "--with-text", "--output", "vectors.parquet", "a cat", "a dog"]).success();
    run(&home, &["index", "import", "vectors", "vectors.parquet"]).success();
    let points = lines(&run(&home, &["index", "export", "vectors"]).success());
    assert_eq!((points.len(), &points[1]["payload"]["text"]), (2, &json!("a dog")));
}

#[test]
fn files_are_read_in_parts_and_again_only_when_they_changed() {
    let home = Home::new();
    std::fs::create_dir(home.path("docs")).unwrap();
    home.write("docs/keys.md", "# Keys\n\nA king has the keys of the castle.\n");
    home.write("docs/page.html", "<html><title>Boats</title><body><p>Boats under the bridge.</p></body></html>");
    home.write("docs/data.bin", [0, 159, 146, 150]);
    let add = || run(&home, &["index", "add", "notes", "docs"]).success().stderr;
    let said = add();
    assert!(said.contains("2 files in 3 parts are in notes; 0 had not changed, 1 were left out"), "{said}");
    let said = add();
    assert!(said.contains("0 files in 0 parts are in notes; 2 had not changed"), "{said}");
    let found = lines(&run(&home, &["search", "notes", "the king of the castle", "--hybrid", "--json"]).success());
    assert!(found[0]["payload"]["source"].as_str().unwrap().ends_with("docs/keys.md"), "{found:?}");
    home.write("docs/keys.md", "Nothing of that.\n");
    let said = add();
    assert!(said.contains("1 files in 1 parts are in notes; 1 had not changed"), "{said}");
    let found = lines(&run(&home, &["search", "notes", "king", "--hybrid", "--json"]).success());
    assert!(found.iter().all(|line| !line["payload"]["text"].as_str().unwrap().contains("king")), "{found:?}");
}

#[test]
fn wrong_documents_are_named_by_file_and_line() {
    let home = Home::new();
    home.write("documents.jsonl", "{\"text\": \"a\"}\n{\"body\": \"b\"}\n");
    let refused = run(&home, &["index", "add", "notes", "-f", "documents.jsonl"]);
    assert!(refused.code == 3 && refused.stderr.contains("documents.jsonl, line 2"), "{}", refused.stderr);
    let missing = run(&home, &["index", "add", "notes", "-f", "none.jsonl"]);
    assert!(missing.code == 3 && missing.stderr.contains("no such file"), "{}", missing.stderr);
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server in the home, and its address.
fn serve(home: &Home) -> (Running, String) {
    use std::io::{BufRead, BufReader};
    let mut command: Command = home.command(&["serve", "--port", "0", "--threads", "1", "--device", "cpu", "--model"]);
    let child = command.arg(fixture("bert")).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut running = Running(child);
    let mut stderr = BufReader::new(running.0.stderr.take().expect("it is piped"));
    let mut line = String::new();
    while !line.contains("listening on ") {
        line.clear();
        assert_ne!(stderr.read_line(&mut line).expect("a line"), 0, "the server ended");
    }
    std::thread::spawn(move || stderr.lines().for_each(drop));
    let url = line.split_whitespace().find(|word| word.starts_with("http://")).expect("its address").to_owned();
    (running, url)
}

#[test]
fn a_server_does_it_while_it_has_the_folder() {
    let home = Home::new();
    home.write("documents.jsonl", DOCUMENTS);
    let (_running, url) = serve(&home);
    let at = |args: &[&str]| {
        let mut all = args.to_vec();
        all.extend(["--server", &url]);
        home.call(&all).run()
    };
    at(&["index", "add", "notes", "-f", "documents.jsonl"]).success();
    let found = at(&["search", "notes", "kings", "--hybrid", "--json"]).success();
    assert_eq!(lines(&found)[0]["payload"]["author"], json!("Bob"));
    let exported = at(&["index", "export", "notes"]).success();
    assert_eq!(lines(&exported).len(), 3);
    assert!(at(&["index", "ls"]).success().stdout.starts_with("notes  3 points"));
    // Without --server it is told what to do.
    let refused = run(&home, &["search", "notes", "cat"]);
    assert!(refused.code == 9 && refused.stderr.contains("--server URL"), "{} {}", refused.code, refused.stderr);
    at(&["index", "rm", "notes"]).success();
    assert_eq!(at(&["index", "ls"]).success().stdout, "");
}
