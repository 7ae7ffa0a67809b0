//! Four times the clients that a device can carry: what they are told is true, and as much gets done as with those it can carry.

use magray_simulator::{Manners, Overload, Seen, overload};
use std::time::Duration;

const CHATS: usize = 0;
const EMBEDDINGS: usize = 1;

/// Chats that a CPU can carry, and a queue for twice as many.
const CPU: Overload = Overload {
    seed: 1,
    chats: 8,
    embedders: 0,
    manners: Manners::Obey,
    prompt: (64, 64),
    new_tokens: (32, 32),
    ends: 1.0,
    texts: 16,
    space: 100_000,
    tokens_max: 1_536,
    wait_max: Duration::from_secs(2),
    callers: 1,
    is_gpu: false,
    lasts: Duration::from_secs(80),
    counted_from: Duration::from_secs(20),
};

/// The memory for keys and values is what is scarce.
const SPACE: Overload = Overload { tokens_max: 4 << 20, space: 768, ..CPU };

/// A quarter of the clients embeds.
const MIXED: Overload = Overload { chats: 6, embedders: 2, tokens_max: 8_192, ..CPU };

/// Requests of many sizes, most of which end early.
const GPU: Overload = Overload {
    chats: 64,
    prompt: (64, 1_000),
    new_tokens: (64, 512),
    ends: 0.3,
    tokens_max: 64_000,
    is_gpu: true,
    lasts: Duration::from_secs(50),
    ..CPU
};

/// The same, where a quarter of the clients embeds.
const GPU_MIXED: Overload = Overload { chats: 48, embedders: 16, ..GPU };

/// What is seen with four times the clients, and the parts of the rates that are kept.
fn overloaded(load: Overload, manners: Manners) -> (Seen, [f64; 2]) {
    let peak = overload(load);
    let seen = overload(Overload { chats: 4 * load.chats, embedders: 4 * load.embedders, manners, ..load });
    let kept = |kind: usize| if peak.rates[kind] > 0.0 { seen.rates[kind] / peak.rates[kind] } else { 1.0 };
    let kept = [kept(CHATS), kept(EMBEDDINGS)];
    (seen, kept)
}

#[test]
fn clients_that_obey_are_told_the_truth_and_keep_the_device_busy() {
    let many = Overload { callers: 4, ..MIXED };
    for (name, load) in [("tokens", CPU), ("space", SPACE), ("mixed", MIXED), ("callers", many), ("gpu", GPU)] {
        let (seen, kept) = overloaded(load, Manners::Obey);
        for kind in [CHATS, EMBEDDINGS] {
            let share = seen.true_share(kind);
            assert!(share >= 0.95, "{name}: {share} of {} times told to {kind} were true", seen.told[kind].len());
            assert!(kept[kind] >= 0.95, "{name}: {} of the rate of {kind} is kept", kept[kind]);
        }
        assert!(seen.refusals > 0.0, "{name} is no overload");
        let answers = seen.answered[CHATS] + seen.answered[EMBEDDINGS];
        let refusals = seen.refusals * (load.lasts - load.counted_from).as_secs_f64() / answers as f64;
        assert!(refusals < 2.5, "{name}: {refusals} refusals for each answer");
    }
}

#[test]
fn clients_that_know_whole_seconds_only_find_the_room_that_they_were_promised() {
    for (name, load) in [("tokens", CPU), ("space", SPACE), ("gpu", GPU)] {
        let (seen, kept) = overloaded(load, Manners::WholeSeconds);
        assert!(seen.true_share(CHATS) >= 0.95, "{name}: {}", seen.true_share(CHATS));
        assert!(kept[CHATS] >= 0.9, "{name}: {kept:?}");
    }
}

#[test]
fn clients_that_come_when_they_like_take_nothing_from_the_rate() {
    for (name, load) in [("tokens", CPU), ("space", SPACE), ("mixed", MIXED)] {
        let (seen, kept) = overloaded(load, Manners::Fixed(Duration::from_millis(250)));
        assert!(kept.iter().all(|kept| *kept >= 0.9), "{name}: {kept:?}");
        assert!(load.embedders > 0 || seen.true_share(CHATS) >= 0.8, "{name}: {}", seen.true_share(CHATS));
    }
    for load in [CPU, SPACE] {
        let (seen, kept) = overloaded(load, Manners::HalfEarly(0.2));
        assert!(kept[CHATS] >= 0.95 && seen.true_share(CHATS) >= 0.7, "{} {kept:?}", seen.true_share(CHATS));
    }
}

#[test]
fn nobody_waits_without_an_end() {
    // Each of 32 chats is one of 12 that are taken at a time, for about six seconds.
    let (seen, _) = overloaded(CPU, Manners::Obey);
    assert!(seen.longest[CHATS] < 25.0, "{:?}", seen.longest);
    let (seen, _) = overloaded(MIXED, Manners::Obey);
    assert!(seen.longest[EMBEDDINGS] < 2.0, "{:?}", seen.longest);
}

#[test]
fn chats_that_filled_the_queue_kept_embeddings_out() {
    let (seen, _) = overloaded(GPU_MIXED, Manners::Obey);
    // They have been told seconds, the time of chats, and 50 a second were answered.
    assert!(seen.answered[EMBEDDINGS] > 20_000 && seen.longest[EMBEDDINGS] < 2.0, "{:?}", seen.longest);
}

#[test]
fn embeddings_made_streams_of_the_same_gpu_wait_for_200_ms_at_each_token() {
    for load in [GPU_MIXED, Overload { callers: 4, ..GPU_MIXED }] {
        let chats = overload(Overload { embedders: 0, ..load });
        let embeddings = overload(Overload { chats: 0, ..load });
        let both = overload(load);
        // What each kind gets of what it has alone: streams had 0.05, and embeddings 0.95.
        let parts = |seen: &Seen| {
            let [streams, texts] = [CHATS, EMBEDDINGS].map(|kind| [&chats, &embeddings][kind].rates[kind]);
            [seen.rates[CHATS] / streams, seen.rates[EMBEDDINGS] / texts]
        };
        let [streams, texts] = parts(&both);
        assert!(streams > 0.45 && texts > 0.49 && streams + texts > 0.95, "{streams} {texts}");
        let (seen, _) = overloaded(load, Manners::Obey);
        let [streams_then, texts_then] = parts(&seen);
        assert!(streams_then > streams && texts_then > 0.75 * texts, "{streams_then} {texts_then}");
        assert!(streams_then + texts_then > 0.95 * (streams + texts), "{streams_then} {texts_then}");
        for part in [0.5, 0.99] {
            let [alone, beside, then] = [&chats, &both, &seen].map(|seen| seen.gap(part));
            assert!(beside < 2.1 * alone && then < 2.1 * alone, "{part}: {alone} s, {beside} s and {then} s");
        }
        let shares = [CHATS, EMBEDDINGS].map(|kind| seen.true_share(kind));
        assert!(shares[CHATS] > 0.95 && shares[EMBEDDINGS] > 0.9, "{shares:?} of the times told were true");
    }
}
