//! Attention of new tokens to the pages of their sequences, and what is done to queries and keys before.
//! Reads no token that comes later or lies outside of the window.

use super::pages::{FloatPages, Kept};
use super::product::dot;
use crate::cpu::ThreadPool;
use crate::cpu::decoder::RmsNorm;
use crate::{AttentionLayer, PAGE_TOKENS, RopeSource, StepBatch};
use std::sync::{Mutex, PoisonError};

type Layer<'a> = AttentionLayer<'a, RmsNorm, RopeSource>;

/// Normalises and turns queries and keys in their rows, and puts keys and values into pages.
pub(in crate::cpu::decoder) fn rope_append(
    steps: &StepBatch<'_>,
    layer: &Layer<'_>,
    qkv: &mut [f32],
    pages: &mut FloatPages,
) {
    let shape = pages.shape();
    let (size, heads, kv_heads) = (shape.head_size, layer.heads, shape.kv_heads);
    let columns = (heads + 2 * kv_heads) * size;
    assert_eq!(qkv.len(), steps.tokens() * columns, "queries, keys and values");
    for step in steps.steps() {
        for (i, row) in step.rows.clone().enumerate() {
            let position = step.start + i;
            let row = &mut qkv[row * columns..(row + 1) * columns];
            for (head, numbers) in row[..(heads + kv_heads) * size].chunks_exact_mut(size).enumerate() {
                let norm = if head < heads { layer.query_norm } else { layer.key_norm };
                if let Some(norm) = norm {
                    norm.apply(numbers);
                }
                turn(layer.rope, position, numbers);
            }
            let (page, token) = (step.pages[position / PAGE_TOKENS], position % PAGE_TOKENS);
            let (keys, values) = row[heads * size..].split_at(kv_heads * size);
            for head in 0..kv_heads {
                let numbers = head * size..(head + 1) * size;
                pages.write(page, token, layer.layer, Kept::Key, head, &keys[numbers.clone()]);
                pages.write(page, token, layer.layer, Kept::Value, head, &values[numbers]);
            }
        }
    }
}

/// Turns the pairs of a head by its position.
pub(in crate::cpu::decoder) fn turn(rope: &RopeSource, position: usize, head: &mut [f32]) {
    let pairs = rope.radians.len();
    for (pair, radians) in rope.radians.iter().enumerate() {
        let (sine, cosine) = (position as f32 * radians).sin_cos();
        let (sine, cosine) = (sine * rope.scale, cosine * rope.scale);
        let (a, b) = if rope.neighbours { (2 * pair, 2 * pair + 1) } else { (pair, pair + pairs) };
        let (x, y) = (head[a], head[b]);
        head[a] = x * cosine - y * sine;
        head[b] = y * cosine + x * sine;
    }
}

/// The queries that share a head of keys, of one token.
struct Queries<'a> {
    position: usize,
    pages: &'a [u32],
    head: usize,
    numbers: &'a [f32],
}

/// Threads take the heads of keys and values of a token, with all queries that share them.
pub(in crate::cpu::decoder) fn attend(
    pool: &ThreadPool,
    steps: &StepBatch<'_>,
    layer: &Layer<'_>,
    (qkv, pages): (&[f32], &FloatPages),
    out: &mut [f32],
) {
    let shape = pages.shape();
    let (size, heads, kv_heads) = (shape.head_size, layer.heads, shape.kv_heads);
    assert!(heads.is_multiple_of(kv_heads), "as many queries for each key");
    assert_eq!(out.len(), steps.tokens() * heads * size, "room for all heads");
    let columns = (heads + 2 * kv_heads) * size;
    let shared = heads / kv_heads * size;
    let tokens: Vec<(usize, &[u32])> = steps
        .steps()
        .flat_map(|step| step.rows.clone().enumerate().map(move |(i, _)| (step.start + i, step.pages)))
        .collect();
    let items = Mutex::new(out.chunks_exact_mut(shared).enumerate());
    pool.run(&|_| {
        let mut scores = Vec::new();
        loop {
            let taken = items.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((item, out)) = taken else { return };
            let (row, head) = (item / kv_heads, item % kv_heads);
            let (position, table) = tokens[row];
            let start = row * columns + head * shared;
            let queries = Queries { position, pages: table, head, numbers: &qkv[start..start + shared] };
            for (i, out) in out.chunks_exact_mut(size).enumerate() {
                one_head(layer, &queries, i, pages, &mut scores, out);
            }
        }
    });
}

fn one_head(
    layer: &Layer<'_>,
    queries: &Queries<'_>,
    index: usize,
    pages: &FloatPages,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    let size = out.len();
    let query = &queries.numbers[index * size..(index + 1) * size];
    let first = layer.window.map_or(0, |window| (queries.position + 1).saturating_sub(window));
    let kept = |token: usize, kept: Kept| {
        let page = queries.pages[token / PAGE_TOKENS];
        let at = token % PAGE_TOKENS * size;
        &pages.tokens(page, layer.layer, kept, queries.head)[at..at + size]
    };
    let score = |token: usize| {
        let score = dot(query, kept(token, Kept::Key)) * layer.scale;
        layer.cap.map_or(score, |cap| cap * (score / cap).tanh())
    };
    scores.clear();
    scores.extend((first..=queries.position).map(score));
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - largest).exp();
        total += *score;
    }
    out.fill(0.0);
    for (score, token) in scores.iter().zip(first..) {
        let share = score / total;
        for (out, value) in out.iter_mut().zip(kept(token, Kept::Value)) {
            *out += share * value;
        }
    }
}
