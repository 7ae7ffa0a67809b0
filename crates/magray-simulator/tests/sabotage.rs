//! Tests of the test: each way to break the machine on purpose is found, and for what it is.

use magray_core::schedule::Sabotage;
use magray_simulator::{Rule, try_sabotaged, try_seed};

/// Each must be found within this many seeds, a part of those that every change must pass.
const SEEDS: u64 = 4_000;

/// What to break, and the rule that must notice.
const CASES: [(Sabotage, Rule); 57] = [
    (Sabotage::ForgetReplay, Rule::AllAnswered),
    (Sabotage::AnswerTwice, Rule::AnsweredOnce),
    (Sabotage::AnswerCancelled, Rule::AnsweredOnce),
    (Sabotage::SkipLastText, Rule::Complete),
    (Sabotage::IgnoreAge, Rule::Ages),
    (Sabotage::IgnoreCallers, Rule::Shares),
    (Sabotage::ShareByRequest, Rule::Shares),
    (Sabotage::ForgetServed, Rule::Shares),
    (Sabotage::OverlongBatch, Rule::BatchTime),
    (Sabotage::IgnoreWait, Rule::Waits),
    (Sabotage::IgnoreLimits, Rule::Limits),
    (Sabotage::IgnoreDeadline, Rule::Deadlines),
    (Sabotage::PlaceOnOut, Rule::InRotation),
    (Sabotage::IgnoreBad, Rule::RuledOut),
    (Sabotage::GpuWorkOnCpu, Rule::Allowed),
    (Sabotage::MixGroups, Rule::BatchBounds),
    (Sabotage::OverfillBatch, Rule::BatchBounds),
    (Sabotage::ExceedSlots, Rule::Slots),
    (Sabotage::KeepSuspectsTogether, Rule::SuspectsAlone),
    (Sabotage::IgnorePoison, Rule::PoisonStopped),
    (Sabotage::BlameEverybody, Rule::Innocent),
    (Sabotage::SkipHangCheck, Rule::HangsEnd),
    (Sabotage::NeverReturn, Rule::ComesBack),
    (Sabotage::ForgetWake, Rule::HonestWake),
    (Sabotage::StartWithoutWeights, Rule::HasWeights),
    (Sabotage::LoadTwice, Rule::WeightsOrder),
    (Sabotage::OffloadUnderBatch, Rule::NotUnderBatch),
    (Sabotage::RestWithWeights, Rule::NotUnderBatch),
    (Sabotage::IgnoreGrant, Rule::Room),
    (Sabotage::GrantTwice, Rule::Accounts),
    (Sabotage::LeakAccount, Rule::Accounts),
    (Sabotage::IgnoreReport, Rule::Accounts),
    (Sabotage::PushPinned, Rule::Pinned),
    (Sabotage::PushAtOnce, Rule::TakesTurns),
    (Sabotage::ComeBackFirst, Rule::GivesWay),
    (Sabotage::EvictForNothing, Rule::MovesForUse),
    (Sabotage::IgnoreIdle, Rule::Idles),
    (Sabotage::NeverRest, Rule::Rests),
    (Sabotage::LetRest, Rule::Rests),
    (Sabotage::IgnorePreheat, Rule::Preheats),
    (Sabotage::LoseResidencyRequest, Rule::Granted),
    (Sabotage::HideRelease, Rule::Granted),
    (Sabotage::LingerOn, Rule::Rests),
    (Sabotage::LoseToken, Rule::Tokens),
    (Sabotage::DoubleToken, Rule::Tokens),
    (Sabotage::ForgetToken, Rule::Tokens),
    (Sabotage::SkipReplayedPrompt, Rule::Steps),
    (Sabotage::ExceedNewTokens, Rule::Tokens),
    (Sabotage::LeakState, Rule::KvSpace),
    (Sabotage::OverfillKv, Rule::KvSpace),
    (Sabotage::StarvePrompts, Rule::Starves),
    (Sabotage::OverlongTurn, Rule::TurnTime),
    (Sabotage::IgnoreReader, Rule::SlowReader),
    (Sabotage::NeverResume, Rule::AllAnswered),
    (Sabotage::NeverRoomy, Rule::Roomy),
    (Sabotage::IgnoreSlow, Rule::Speeds),
    (Sabotage::NeverRegain, Rule::Speeds),
];

/// What else a sabotage breaks, for a reason that is understood.
fn is_side_effect(sabotage: Sabotage, rule: Rule) -> bool {
    match sabotage {
        // The machine still wants to be woken to end the worker that hangs, and then leaves it alone, again and again.
        Sabotage::SkipHangCheck => rule == Rule::HonestWake,
        // What was cancelled while its batch ran is kept as well.
        Sabotage::ForgetReplay => rule == Rule::HonestView,
        // A poison that is never alone is never found out, and its client waits without an end.
        Sabotage::KeepSuspectsTogether => {
            matches!(rule, Rule::PoisonStopped | Rule::AllAnswered | Rule::HonestWake)
        }
        // A worker that hangs or should start again is not noticed until something else happens.
        Sabotage::ForgetWake => matches!(rule, Rule::HangsEnd | Rule::ComesBack | Rule::AllAnswered),
        // A worker that should come back for a model and is left to rest does not bring it.
        Sabotage::LetRest => rule == Rule::Preheats,
        // Models that evict each other before they have computed leave their requests without an answer.
        Sabotage::PushAtOnce => rule == Rule::AllAnswered,
        // A token that only the machine has forgotten has state on the device.
        Sabotage::ForgetToken => rule == Rule::Accounts,
        _ => false,
    }
}

#[test]
fn whatever_is_broken_on_purpose_is_found() {
    for (sabotage, rule) in CASES {
        let broken = (0..SEEDS).filter_map(|seed| try_sabotaged(seed, sabotage).err());
        let mut relevant = broken.filter(|failed| !is_side_effect(sabotage, failed.broken.rule));
        let Some(found) = relevant.next() else { panic!("{sabotage:?} does not break {rule:?} in {SEEDS} seeds") };
        assert_eq!(found.broken.rule, rule, "{sabotage:?} in seed {}: {}", found.seed, found.broken);
        // The same world without the sabotage is in order: it is the sabotage that was found.
        assert!(try_seed(found.seed).is_ok(), "seed {} fails without {sabotage:?}", found.seed);
    }
}

#[test]
fn no_way_to_break_it_is_left_out() {
    for sabotage in Sabotage::ALL {
        let cases = CASES.iter().filter(|(listed, _)| listed == sabotage).count();
        assert_eq!(cases, 1, "{sabotage:?} must have one case, with the rule that notices it");
    }
}
