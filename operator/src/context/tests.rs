use super::*;
use crate::testing::{report, world};

fn at(seconds: i64) -> Time {
    Time(jiff::Timestamp::from_second(seconds).unwrap())
}

#[test]
fn a_transition_is_a_change_of_the_status_not_of_the_words() {
    let first = yes("A", "").condition("Ready", &[], Some(1), &at(1));
    assert_eq!(first.last_transition_time, at(1));
    let reworded = yes("B", "more").condition("Ready", std::slice::from_ref(&first), Some(2), &at(2));
    assert_eq!((reworded.last_transition_time, reworded.observed_generation), (at(1), Some(2)));
    let turned = no("B", "").condition("Ready", std::slice::from_ref(&first), Some(2), &at(3));
    assert_eq!(turned.last_transition_time, at(3));
    let other = yes("A", "").condition("Other", &[first], Some(2), &at(4));
    assert_eq!(other.last_transition_time, at(4));
}

#[test]
fn times_are_whole_seconds() {
    let exact: jiff::Timestamp = "2026-01-02T03:04:05.999Z".parse().unwrap();
    assert_eq!(whole_seconds(exact), Time("2026-01-02T03:04:05Z".parse().unwrap()));
}

#[test]
fn silence_towards_a_new_leader_is_no_news() {
    let mut scene = world().node("vms/vm1").unnamed(["10.0.0.5"]).scene();
    scene.hear(report("vms/vm1"));
    let key = Key::new("vms", "vm1");
    let meta = scene.live.world().external_nodes[&key].meta().clone();
    let mut judged = |wait, settling| {
        scene.wait(wait);
        scene.settling = settling;
        scene.ctx().heard(&key, &meta).map(|(_, liveness)| liveness)
    };
    assert_eq!(judged(0, true), Some(Liveness::Live));
    assert_eq!((judged(31, true), judged(0, false)), (None, Some(Liveness::Late)));
    assert_eq!((judged(30, true), judged(0, false)), (None, Some(Liveness::Gone)));
}

#[test]
fn a_report_of_a_namesake_is_not_heard() {
    let mut scene = world().node("vms/vm1").unnamed(["10.0.0.5"]).scene();
    scene.hear(report("vms/vm1").uid("another"));
    let key = Key::new("vms", "vm1");
    assert!(scene.ctx().heard(&key, scene.live.world().external_nodes[&key].meta()).is_none());
}

#[test]
fn a_condition_keeps_the_start_of_a_very_long_message() {
    let now = Time(jiff::Timestamp::UNIX_EPOCH);
    let message = |text: String| no("Invalid", text).condition("Accepted", &[], None, &now).message;
    assert_eq!(message("short".to_owned()), "short");
    let long = message("é".repeat(10_000));
    assert!(long.len() <= 4096 && long.ends_with("é…"));
}
