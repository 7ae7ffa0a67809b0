//! Plans that are read, and plans that are refused.

use super::*;
use proptest::prelude::*;

fn read(text: &str) -> FaultPlan {
    text.parse().unwrap()
}

fn refused(text: &str) -> String {
    text.parse::<FaultPlan>().unwrap_err().to_string()
}

#[test]
fn a_plan_of_everything_is_read() {
    let plan = read(
        "illegal_address@2s, hang@5s; oom@8s*3,kill@11s,wrong@3s,slow@4s+2s,hot@6s+2s,xid79@9s,\
         poison@id=1234,transient@batch=10; seed=7, random@0.5/s, cuda:0/crash@every=100*4, sim:1/kill@every=1.5s",
    );
    assert_eq!((plan.entries.len(), plan.seed), (13, 7));
    assert_eq!(
        plan.entries[2],
        Entry {
            device: None,
            kind: Some(FaultKind::OutOfMemory),
            trigger: Trigger::At(Duration::from_secs(8)),
            times: Some(3),
            lasts: None,
        }
    );
    assert_eq!(plan.entries[5].lasts, Some(Duration::from_secs(2)));
    assert_eq!(plan.entries[11].trigger, Trigger::EveryBatches(100));
    assert_eq!(plan.devices().collect::<Vec<_>>(), ["cuda:0", "sim:1"]);
}

#[test]
fn nothing_is_a_plan_too() {
    assert!(read("").is_empty() && read(" , ;seed=3").is_empty());
    assert!(!read("hang@1s").is_empty());
}

#[test]
fn a_plan_written_out_reads_the_same() {
    let plan = read("oom@8s*3,cuda:0/slow@0.25s+20ms,random@0.5/s*9,poison@id=7,hang@batch=3,hot@every=2m+1s,seed=9");
    assert_eq!(read(&plan.to_string()), plan);
}

#[test]
fn what_names_a_gpu_of_a_group_befalls_that_one() {
    let plan = read("sim:0/hang@1s, sim:1/oom@batch=3, sim:2/crash@1s, kill@2s");
    let group = plan.of_device(&["sim:0".to_owned(), "sim:1".to_owned()]);
    assert_eq!(read(&group.to_string()), group, "as the worker gets it");
    assert_eq!(group.ranks().into_iter().collect::<Vec<_>>(), [0, 1]);
    let kinds = |rank| group.of_rank(rank).entries.iter().map(|entry| entry.kind.unwrap()).collect::<Vec<_>>();
    assert_eq!(kinds(Some(0)), [FaultKind::Hang]);
    assert_eq!(kinds(Some(1)), [FaultKind::OutOfMemory]);
    assert_eq!(kinds(None), [FaultKind::Kill]);
}

#[test]
fn a_device_gets_its_own_part_and_its_own_chances() {
    let plan = read("seed=1,cuda:0/hang@1s,cuda:1/oom@1s,random@1/s");
    let (first, second) = (plan.of_device(&["cuda:0".to_owned()]), plan.of_device(&["cuda:1".to_owned()]));
    assert_eq!(first.entries.len(), 2);
    assert_eq!(first.entries[0].kind, Some(FaultKind::Hang));
    assert_eq!(second.entries[0].kind, Some(FaultKind::OutOfMemory));
    assert_ne!(first.seed, second.seed);
    assert_eq!(first, plan.of_device(&["cuda:0".to_owned()]), "the same in every worker of the device");
    assert_eq!(plan.of_device(&["cuda:2".to_owned()]).entries.len(), 1);
    assert_eq!(read(&first.to_string()), first, "as the worker gets it");
}

#[test]
fn what_is_wrong_is_refused_with_what_would_be_right() {
    for (text, help) in [
        ("hang", "hang@5s"),
        ("fire@2s", "illegal_address"),
        ("hang@soon", "write 5s"),
        ("hang@-1s", "write 5s"),
        ("hang@1e99s", "write 5s"),
        ("hang@batch=0", "from 1"),
        ("hang@every=0s", "never ends"),
        ("oom@2s*0", "above 0"),
        ("oom@2s*x", "above 0"),
        ("random@2s", "random@0.5/s"),
        ("random@0/s", "above 0"),
        ("random@1e9/s", "at most 1000"),
        ("poison@2s", "poison@id="),
        ("hang@id=3", "poison@id="),
        ("poison@id=x", "whole number"),
        ("poison@id=3*2", "leave out"),
        ("hot@batch=3", "hot@5s"),
        ("kill@batch=3", "kill@5s"),
        ("hang@2s+1s", "behind +"),
        ("slow@batch=3+1s", "behind +"),
        ("hang@2s*3", "hang@every=5s*3"),
        ("slow@2s+1s*3", "slow@every=5s*3"),
        ("a b/hang@2s", "cuda:0"),
        ("/hang@2s", "cuda:0"),
        ("seed=x", "whole number"),
    ] {
        let message = refused(text);
        assert!(message.contains(help) && message.contains(text), "{text}: {message}");
    }
    let many = "hang@1s,".repeat(ENTRIES_MAX + 1);
    assert!(refused(&many).contains("at most 256"));
}

proptest! {
    #[test]
    fn no_text_is_a_panic(text in "[a-z0-9@*+=/.:, -]{0,40}") {
        if let Ok(plan) = text.parse::<FaultPlan>() {
            prop_assert_eq!(plan.to_string().parse::<FaultPlan>(), Ok(plan));
        }
    }
}

#[test]
fn poison_outside_of_the_vocabulary_was_planned_and_never_happened() {
    let plan = read("kill@2s, sim:0/poison@id=1000, poison@id=999");
    let refused = plan.check_vocabulary(1000).unwrap_err().to_string();
    assert_eq!(
        refused,
        "the fault 'sim:0/poison@id=1000' cannot be planned: no text holds this token: the vocabulary has 1000, from 0 to 999"
    );
    assert_eq!(plan.check_vocabulary(1001), Ok(()));
}
