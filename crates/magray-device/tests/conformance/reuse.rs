//! Operations that served one model serve another: nothing of the first is left in them.

use crate::poison::Poison;
use crate::rig::{Rig, Subject};
use crate::rows::Rows;
use crate::texts::Texts;
use magray_core::Pooling;
use magray_device::{AttentionShape, Ops, PoolShape};

conforms!(
    a_wider_model_leaves_nothing_in_the_embedding,
    larger_heads_leave_nothing_in_attention,
    larger_heads_leave_no_nan_in_attention,
    a_text_with_nothing_left_to_pool_is_zero,
    an_answer_is_the_last_finish,
);

fn a_wider_model_leaves_nothing_in_the_embedding<S: Subject>(rig: &mut Rig<S>) {
    let (wide, narrow) = (rig.random.rows(9, 100), rig.random.rows(9, 77));
    let mut embed = |rows: &Rows| {
        let mut acts = rig.acts(rows.len(), rows.columns);
        rig.embed_into(rows, &mut acts);
        rig.get(&acts).values
    };
    let before = embed(&narrow);
    embed(&wide);
    let after = embed(&narrow);
    assert_eq!(before, after, "{}", rig.name);
}

/// Attention of one text with three heads, on the rig's operations.
fn attend<S: Subject>(rig: &mut Rig<S>, rows: &Rows) -> Rows {
    let qkv = rig.put(rows, 1.0);
    let mut out = rig.acts(rows.len(), rows.columns / 3);
    let texts = Texts::new(&[rows.len()]);
    rig.ops.attention(&qkv, &texts.batch(), AttentionShape { heads: 3, bias: None }, &mut out);
    rig.get(&out)
}

fn larger_heads_leave_nothing_in_attention<S: Subject>(rig: &mut Rig<S>) {
    let (large, small) = (rig.random.rows(40, 9 * 16), rig.random.rows(20, 9 * 12));
    let before = attend(rig, &small);
    attend(rig, &large);
    assert_eq!(before.values, attend(rig, &small).values, "{}", rig.name);
}

fn larger_heads_leave_no_nan_in_attention<S: Subject>(rig: &mut Rig<S>) {
    for (large, small) in [(16, 12), (128, 64), (64, 32)] {
        let (mut large, small) = (rig.random.rows(40, 9 * large), rig.random.rows(20, 9 * small));
        let before = attend(rig, &small);
        // A query that no later block of the large text overwrites, and that the small one has too.
        Poison::Nan.spoil(large.row_mut(12));
        attend(rig, &large);
        assert_eq!(before.values, attend(rig, &small).values, "{}", rig.name);
    }
}

fn a_text_with_nothing_left_to_pool_is_zero<S: Subject>(rig: &mut Rig<S>) {
    let texts = Texts::new(&[0, 2, 3]);
    let rows = rig.random.rows(texts.tokens(), 33);
    let acts = rig.put(&rows, 1.0);
    for way in Pooling::ALL {
        let got = rig.pool(&acts, &texts.batch(), PoolShape { ways: &[way], skip: 2 });
        let name = &rig.name;
        assert_eq!(got.row(0), [0.0; 33], "{name} {way:?}: an empty text");
        assert_eq!(got.row(1), [0.0; 33], "{name} {way:?}: a text no longer than its prompt");
        assert!(got.row(2).iter().all(|&x| x.is_finite() && x != 0.0), "{name} {way:?}");
    }
}

fn an_answer_is_the_last_finish<S: Subject>(rig: &mut Rig<S>) {
    let (large, small) = (rig.random.rows(9, 100), rig.random.rows(2, 7));
    let (large, small) = (rig.put(&large, 1.0), rig.put(&small, 1.0));
    let wanted = rig.get(&small).values;
    rig.get(&large);
    assert_eq!(rig.get(&small).values, wanted, "{}: after a larger one", rig.name);
    // Asked twice, the answer is the same.
    let again = rig.ops.answer().expect("the device answers").to_vec();
    assert_eq!(again, wanted, "{}: asked twice", rig.name);
}
