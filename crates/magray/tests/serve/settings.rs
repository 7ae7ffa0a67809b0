//! Settings that act on a server: where models are computed, when they are loaded.

use crate::rig::{Setup, fixture, said_soon, wait_for};

fn two_gpus(settings: &str) -> Setup {
    let (embed, rank) = (fixture("bert"), fixture("xlm-roberta-classify"));
    Setup::new(&["--simulated-gpus", "2", "--model", &embed, "--model", &rank]).settings(settings)
}

#[test]
fn a_model_is_computed_where_it_is_assigned_to() {
    let server =
        two_gpus("[gpu.model_assignments]\nembedding = 'sim:1'\nxlm-roberta-classify = 'cpu'\nnobody = 'cpu'\n")
            .start();
    for _ in 0..4 {
        let embedded = server.post("/v1/embeddings", r#"{"input": "hello", "model": "bert"}"#);
        assert_eq!((embedded.status, embedded.header("x-magray-device")), (200, Some("sim:1")), "{}", embedded.text());
        let body = r#"{"query": "a", "texts": ["b"], "model": "xlm-roberta-classify"}"#;
        let ranked = server.post("/rerank", body);
        assert_eq!((ranked.status, ranked.header("x-magray-device")), (200, Some("cpu")), "{}", ranked.text());
    }
    let warning = "gpu.model_assignments names 'nobody', which is no role, no critic and none of the models: bert, xlm-roberta-classify";
    assert!(said_soon(&server, warning), "{}", server.said());
}

#[test]
fn a_model_that_is_assigned_to_a_gpu_that_is_not_there_is_refused_at_the_start() {
    let (code, said) = two_gpus("[gpu.model_assignments]\nbert = 'sim:7'\n").refused();
    assert!(
        code != 0 && said.contains("a model is assigned to sim:7, which is not there or not used"),
        "{code}: {said}"
    );
}

#[test]
fn models_are_loaded_at_the_start_where_that_is_set_and_else_by_their_first_request() {
    let location = |server: &crate::rig::Server| server.get("/gpu/status").json()["models"][0]["location"].clone();
    let lazy = Setup::on_gpu("").start();
    assert_eq!(location(&lazy), "unloaded");
    let server = Setup::on_gpu("").env("MAGRAY_PRELOAD", "true").start();
    wait_for("the model on the GPU", || location(&server) == "gpu");
}

#[test]
fn the_cpu_stands_in_for_the_gpu_that_a_model_is_assigned_to() {
    let model = fixture("bert");
    let setup = Setup::new(&["--simulated-gpus", "1", "--model", &model]).env("MAGRAY_FAULTS", "load_oom@0s*1000");
    let server = setup.settings("[gpu.model_assignments]\nbert = 'sim:0'\n").start();
    let reply = server.post("/v1/embeddings", r#"{"input": "hello"}"#).ok();
    assert_eq!(reply.header("x-magray-device"), Some("cpu"));
}

#[test]
fn a_synthetic_model_says_at_the_start_that_it_reads_no_texts() {
    let server = Setup::new(&["--device", "cpu", "--model", "synthetic:tiny"]).start();
    assert!(server.said().contains("warning: 'synthetic:tiny' is synthetic: it has no tokenizer"), "{}", server.said());
    let ids = r#"{"model": "synthetic:tiny", "input": [[101, 102]]}"#;
    assert!(server.said().contains(ids), "{}", server.said());
    server.post("/v1/embeddings", ids).ok();
    let refused = server.post("/v1/embeddings", r#"{"input": "river"}"#);
    assert!((400..500).contains(&refused.status) && refused.text().contains("token ids"), "{}", refused.text());
}

#[test]
fn poison_outside_of_the_vocabulary_is_refused_at_the_start() {
    let (code, said) = Setup::on_gpu("poison@id=123456").refused();
    let told = "'poison@id=123456' cannot be planned: no text holds this token: the vocabulary has ";
    assert!(code == 2 && said.contains(told), "{code}: {said}");
}
