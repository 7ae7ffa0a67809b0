//! The help texts: complete, with examples, and honest about the exit codes.
//! Checks no wording but that of the first page.

use expect_test::expect;

use crate::runner::Home;

#[test]
fn the_first_page_shows_commands_examples_and_exit_codes() {
    let answer = Home::new().call(&["--help"]).run().success();
    expect![[r#"
        Embeddings and search from the command line and through HTTP, on the CPU or on an NVIDIA GPU

        Usage: magray [OPTIONS] <COMMAND>

        Commands:
          embed        Turn texts into vectors
          chat         Ask a language model, once or in a conversation
          evaluate     Let critics judge a text: ethics, fairness, safety, or those of the settings
          generate     Go on with a text by a language model
          rerank       Put documents in the order in which they answer a query
          index        Put documents into collections, and list, export and delete these
          search       Find documents of a collection by their meaning and their words
          serve        Serve embeddings and reranking through HTTP
          demo         See a server with simulated GPUs under load while they fail, and that no request is
                       lost
          mcp          Give agents tools to embed, rerank and control the GPUs: the model context protocol
                       on stdin and stdout
          top          Watch an engine that runs: devices, memory, load, models, what happens; and move
                       models
          similarity   Compare two texts: the cosine of their vectors
          bench        Measure the speed of this machine
          gpu          Show GPUs and the models on them, move models, measure or reset a GPU
          pull         Download a model into the store
          models       List the models of the store, or remove one
          config       Show every setting, its value and where it came from; write a file to start from
          completions  Print a script by which a shell completes commands and flags
          man          Write manual pages
          version      Print the version, and what it was built from and with
          help         Print this message or the help of the given subcommand(s)

        Options:
              --config <FILE>  Read settings from this file (.toml, .yaml, .yml)
          -q, --quiet          Print no summary and no progress; warnings and errors stay
          -v, --verbose        Print more: which device was chosen and why
          -h, --help           Print help
          -V, --version        Print version

        Examples:
          magray embed "hello world"                    the model is pulled on first use
          magray embed -f texts.txt --output texts.npy  one text a line, into a NumPy file
          magray similarity "a cat" "a kitten"
          magray rerank "meow" "a car" "a kitten"       the best first
          magray chat                                   a conversation; its model is pulled on first use
          magray chat "Why is the sky blue?"            one answer
          magray evaluate "All of them are lazy."       critics judge a text
          magray generate -m smollm2.gguf "Once upon"   a language model goes on with a text
          magray index add notes docs/                  a collection of documents, and a search in it
          magray search notes "how do I rotate the keys?" --hybrid
          magray serve                                  OpenAI's and TEI's APIs on http://127.0.0.1:7860
          magray bench embed --batch 1,32 --tokens 128
          magray gpu info                               GPUs, and which device is chosen and why
          magray config                                 every setting and where it came from

        Exit codes:
            0  success
            1  a fault of magray itself
            2  the command line or the configuration is wrong
            3  the input cannot be read, or a text in it is not acceptable
            4  there is no such model, or it is broken
            5  a model could not be pulled: network, hub or pip
            6  the disk or the output refused a write
            7  the device or CPU path asked for is not available, or failed
            8  no magray is running that could do it
            9  a magray that runs did not do it, or not in time
           10  the critics rejected the text
           11  the critics could not decide: one that counts gave no verdict
          130  interrupted (Ctrl-C or a termination signal); no output that is not whole has its name
    "#]]
    .assert_eq(&answer.stdout);
}

#[test]
fn every_command_has_examples() {
    let home = Home::new();
    for command in [
        &["embed"][..],
        &["evaluate"],
        &["rerank"],
        &["index"],
        &["search"],
        &["serve"],
        &["similarity"],
        &["bench", "embed"],
        &["gpu", "info"],
        &["gpu", "status"],
        &["gpu", "offload"],
        &["gpu", "release"],
        &["gpu", "preheat"],
        &["gpu", "timeout"],
        &["gpu", "pin"],
        &["gpu", "benchmark"],
        &["pull"],
        &["models"],
        &["config"],
        &["completions"],
        &["man"],
        &["version"],
    ] {
        let args: Vec<&str> = command.iter().copied().chain(["--help"]).collect();
        let answer = home.call(&args).run().success();
        let example = format!("Examples:\n  magray {}", command.join(" "));
        let has_example = answer.stdout.contains(&example) || answer.stdout.contains("Examples:\n  MAGRAY_");
        assert!(has_example, "{}", answer.stdout);
    }
}

#[test]
fn shells_and_man_know_every_command() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = home.call(&["completions", shell]).run().success().stdout;
        for word in ["embed", "rerank", "completions", "--on-error", "preheat"] {
            let word = if shell == "fish" { word.trim_start_matches('-') } else { word };
            assert!(script.contains(word), "{shell} does not know {word}");
        }
    }
    assert_eq!(home.call(&["completions", "tcsh"]).run().code, 2);
    home.call(&["man", "pages/man1"]).run().success();
    let page = std::fs::read_to_string(home.path("pages/man1/magray-embed.1")).unwrap();
    assert!(page.contains("\\-\\-resume") && page.contains("magray embed"), "{page}");
    for name in ["magray.1", "magray-rerank.1", "magray-gpu-status.1"] {
        assert!(home.path("pages/man1").join(name).is_file(), "{name}");
    }
}

#[test]
fn the_version_tells_how_it_was_built() {
    let home = Home::new();
    let text = home.call(&["version"]).run().success().stdout;
    let names: Vec<&str> = text.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
    assert_eq!(names, ["version", "commit", "target", "profile", "compiler"]);
    let json: serde_json::Value =
        serde_json::from_str(&home.call(&["version", "--json"]).run().success().stdout).unwrap();
    let short = home.call(&["--version"]).run().success().stdout;
    assert_eq!(short, format!("magray {}\n", json["version"].as_str().unwrap()));
    assert!(json["compiler"].as_str().unwrap().starts_with("rustc 1."), "{json}");
}

#[test]
fn mistakes_in_the_command_line_end_with_2() {
    let home = Home::new();
    for args in [
        &["embde"][..],
        &["embed", "--colour", "red", "x"],
        &["embed", "x", "-f", "y"],
        &["embed", "x", "--format", "xml"],
        &["similarity", "only one"],
        &["rerank"],
        &["index"],
        &["search"],
        &["rerank", "query", "document", "--top", "0"],
        &["embed", "x", "--server", "http://127.0.0.1:1", "--device", "cpu"],
        &["embed", "x", "--parallel", "2"],
        &["bench", "embed", "--batch", "0"],
        &["bench", "embed", "--tokens", "8", "--ragged"],
        &["bench", "embed", "--seconds", "-1"],
        &["bench", "embed", "--vectors", "x.npy"],
        &["serve", "--port", "99999"],
        &["serve", "--tls-cert", "cert.pem"],
        &["gpu"],
        &["gpu", "benchmark", "--batch", "0"],
        &["gpu", "offload", "a", "--all"],
        &["gpu", "offload", "--within", "-1"],
        &["gpu", "preheat"],
        &["gpu", "timeout"],
        &["gpu", "timeout", "soon"],
        &["gpu", "timeout", "-5"],
        &["gpu", "status", "--watch", "often"],
        &["gpu", "status", "--watch", "--json"],
        &["top", "--every", "0"],
        &["top", "--pid", "1", "--server", "http://127.0.0.1:1"],
        &["demo", "--rate", "0"],
        &["demo", "--for", "-1"],
        &["demo", "--port", "65536"],
        &["embed", "-q", "-v", "x"],
    ] {
        let answer = home.call(args).run();
        assert_eq!(answer.code, 2, "{args:?}: {}", answer.stderr);
    }
}
