//! The real binary on 1,500 STS-B pairs: its vectors against sentence-transformers', its likeness against people's.
//! Needs the default model in the store; without it the tests say SKIPPED, or fail where `MAGRAY_REQUIRE_MODEL=1`.
#![expect(clippy::print_stdout, reason = "a passing check tells its figures under --nocapture")]

use half::f16;
use std::path::{Path, PathBuf};
use std::process::Command;

const MODEL: &str = "all-MiniLM-L6-v2";

/// What a precision must reach.
struct Limits {
    cosine_min: f64,
    spearman_min: f64,
    spearman_max: f64,
}

#[test]
fn f32_vectors_are_those_of_sentence_transformers() {
    check("f32", &Limits { cosine_min: 0.99999, spearman_min: 0.8667, spearman_max: 0.8677 });
}

#[test]
fn bf16_vectors_stay_close() {
    check("bf16", &Limits { cosine_min: 0.9995, spearman_min: 0.866, spearman_max: 1.0 });
}

#[test]
fn int8_vectors_stay_useful() {
    check("int8", &Limits { cosine_min: 0.995, spearman_min: 0.860, spearman_max: 1.0 });
}

#[test]
fn a_text_has_the_same_vector_alone_and_in_any_batch() {
    if !has_model() {
        return;
    }
    let texts: Vec<String> = read_pairs().into_iter().map(|pair| pair.first).take(400).collect();
    let together = embed(&texts, "f32");
    let reversed: Vec<String> = texts.iter().rev().cloned().collect();
    for (index, vector) in embed(&reversed, "f32").iter().rev().enumerate() {
        assert_same(vector, &together[index], &texts[index]);
    }
    for index in [0, 199, 399] {
        let alone = embed(&texts[index..=index], "f32");
        assert_same(&alone[0], &together[index], &texts[index]);
    }
}

fn check(precision: &str, limits: &Limits) {
    if !has_model() {
        return;
    }
    let pairs = read_pairs();
    let half = pairs.len();
    let firsts = pairs.iter().map(|pair| pair.first.clone());
    let texts: Vec<String> = firsts.chain(pairs.iter().map(|pair| pair.second.clone())).collect();
    let vectors = embed(&texts, precision);
    let reference = read_reference();
    assert_eq!((vectors.len(), reference.len()), (texts.len(), texts.len()));

    let cosines = vectors.iter().zip(&reference).map(|(ours, theirs)| cosine(ours, theirs));
    let (worst, cosine_min) = cosines.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).expect("there are pairs");
    let likeness: Vec<f64> = (0..half).map(|i| cosine(&vectors[i], &vectors[half + i])).collect();
    let scores: Vec<f64> = pairs.iter().map(|pair| pair.score).collect();
    let correlation = spearman(&likeness, &scores);
    println!("{precision}: worst cosine {cosine_min:.7}, Spearman {correlation:.4}");
    assert!(cosine_min >= limits.cosine_min, "{precision}: cosine {cosine_min} of {:?}", texts[worst]);
    let allowed = limits.spearman_min..=limits.spearman_max;
    assert!(allowed.contains(&correlation), "{precision}: Spearman {correlation}, not within {allowed:?}");
}

#[track_caller]
fn assert_same(a: &[f32], b: &[f32], text: &str) {
    let furthest = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
    assert!(a.len() == b.len() && furthest <= 1e-5, "{text:?}: values differ by {furthest}");
}

/// Whether the default model is in the store that the binary uses. Asks for it without pulling it.
fn has_model() -> bool {
    let listed = Command::new(env!("CARGO_BIN_EXE_magray")).arg("models").output().expect("the binary runs");
    let is_there = String::from_utf8_lossy(&listed.stdout).contains(MODEL);
    let is_required = std::env::var_os("MAGRAY_REQUIRE_MODEL").is_some_and(|value| value == "1");
    assert!(is_there || !is_required, "MAGRAY_REQUIRE_MODEL=1, but {MODEL} is not in the store: run `magray pull`");
    if !is_there {
        magray_skip::test(magray_skip::Need::Model, "the default model is not pulled");
    }
    is_there
}

fn embed(texts: &[String], precision: &str) -> Vec<Vec<f32>> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (lines, table) = (folder.path().join("texts.txt"), folder.path().join("vectors.npy"));
    std::fs::write(&lines, texts.join("\n") + "\n").expect("the texts are written");
    let done = Command::new(env!("CARGO_BIN_EXE_magray"))
        .args(["embed", "--model", MODEL, "--precision", precision, "--format", "npy", "-f"])
        .arg(&lines)
        .arg("--output")
        .arg(&table)
        .output()
        .expect("the binary runs");
    assert!(done.status.success(), "magray embed: {}", String::from_utf8_lossy(&done.stderr));
    read_npy(&table, "<f4", |bytes: [u8; 4]| f32::from_le_bytes(bytes))
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

fn read_reference() -> Vec<Vec<f32>> {
    read_npy(&data("stsb-minilm-f16.npy"), "<f2", |bytes: [u8; 2]| f16::from_le_bytes(bytes).to_f32())
}

/// Reads the rows of a two-dimensional `.npy` file of version 1 whose elements have this name.
fn read_npy<const N: usize>(path: &Path, element: &str, decode: impl Fn([u8; N]) -> f32) -> Vec<Vec<f32>> {
    let bytes = std::fs::read(path).expect("the file is there");
    assert_eq!(bytes[..8], *b"\x93NUMPY\x01\x00", "{} is no .npy file of version 1", path.display());
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = String::from_utf8_lossy(&bytes[10..start]).into_owned();
    assert!(header.contains(element) && header.contains("'fortran_order': False"), "{header}");
    let shape = header.split(['(', ')']).nth(1).expect("a shape");
    let sizes: Vec<usize> = shape.split(',').map(str::trim).filter_map(|size| size.parse().ok()).collect();
    let [rows, columns] = sizes[..] else { panic!("not two dimensions: {header}") };
    assert_eq!(bytes.len() - start, rows * columns * N, "{} has another size than it says", path.display());
    let elements: Vec<f32> = bytes[start..].as_chunks::<N>().0.iter().map(|chunk| decode(*chunk)).collect();
    elements.chunks(columns).map(<[f32]>::to_vec).collect()
}

struct Pair {
    first: String,
    second: String,
    score: f64,
}

fn read_pairs() -> Vec<Pair> {
    let text = std::fs::read_to_string(data("stsb-en-dev.csv")).expect("the pairs are there");
    let pairs: Vec<Pair> = text.lines().map(parse_pair).collect();
    assert_eq!(pairs.len(), 1500);
    pairs
}

fn parse_pair(line: &str) -> Pair {
    let [first, second, score] = parse_csv(line).try_into().unwrap_or_else(|_| panic!("not three fields: {line}"));
    Pair { first, second, score: score.parse().expect("a score") }
}

/// The fields of one line; a field in quotes may hold commas, and quotes written twice.
fn parse_csv(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut is_quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let field = fields.last_mut().expect("one field at least");
        match c {
            '"' if is_quoted && chars.peek() == Some(&'"') => field.extend(chars.next()),
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => fields.push(String::new()),
            _ => field.push(c),
        }
    }
    fields
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The correlation of the ranks.
fn spearman(a: &[f64], b: &[f64]) -> f64 {
    let (a, b) = (ranks(a), ranks(b));
    // Both sides hold the ranks 1 to n, ties averaged: the mean is the same.
    let mean = (a.len() as f64 + 1.0) / 2.0;
    let shared = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>();
    shared(&a, &b) / (shared(&a, &a) * shared(&b, &b)).sqrt()
}

/// The rank of each value from 1; equal values share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&i, &j| values[i].total_cmp(&values[j]));
    let mut ranks = vec![0.0; values.len()];
    let mut before = 0;
    for tied in order.chunk_by(|&i, &j| values[i] == values[j]) {
        let rank = before as f64 + (tied.len() as f64 + 1.0) / 2.0;
        tied.iter().for_each(|&i| ranks[i] = rank);
        before += tied.len();
    }
    ranks
}

#[test]
fn ties_share_their_mean_rank() {
    assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
    assert!((spearman(&[1.0, 2.0, 3.0, 4.0], &[10.0, 20.0, 30.0, 25.0]) - 0.8).abs() < 1e-12);
}

#[test]
fn quoted_fields_keep_commas_and_quotes() {
    assert_eq!(parse_csv(r#""a, ""b""",c,1.5"#), [r#"a, "b""#, "c", "1.5"]);
}

#[test]
fn the_references_reproduce_the_published_correlation() {
    let (pairs, reference) = (read_pairs(), read_reference());
    let likeness: Vec<f64> = (0..pairs.len()).map(|i| cosine(&reference[i], &reference[pairs.len() + i])).collect();
    let scores: Vec<f64> = pairs.iter().map(|pair| pair.score).collect();
    assert!((spearman(&likeness, &scores) - 0.8672).abs() < 0.0005);
}
