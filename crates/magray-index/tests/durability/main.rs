//! What was acknowledged survives kills, power cuts, full disks and flipped bytes; what cannot be read is named.
//! The process that is killed or cut off is this test program itself.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

mod damage;
mod kills;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod power_cuts;
mod refusals;
mod script;

#[test]
fn child_that_is_killed_or_cut_off() {
    script::run_as_child();
}
