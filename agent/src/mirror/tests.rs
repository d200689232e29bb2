use std::sync::Arc;

use crds::wire::{Group, Kind, Member, MemberRef, ObjectId};

use super::*;

/// Frames written as the wire writes them: the mirror is tested with what it gets.
fn frame(text: &str) -> Frame {
    Frame::decode(text.as_bytes()).unwrap()
}

fn hello(full: bool) -> Frame {
    Frame::Hello(Hello { wire: WIRE, full, heartbeat_seconds: 10 })
}

fn node(name: &str, uid: &str) -> Frame {
    let body = Node { uid: uid.into(), interfaces: vec![] };
    Frame::Change(Change::Node(Arc::new(Entry::new(name.parse().unwrap(), body))))
}

fn key() -> GroupKey {
    GroupKey::of("web")
}

fn group() -> Frame {
    Frame::Change(Change::Group(Arc::new(Entry::new(key(), Group::default()))))
}

/// A policy whose one rule names the group.
fn policy() -> Frame {
    let rule = format!(
        r#"{{"index":0,"name":"r","direction":"Ingress","action":"Allow","peers":{{"groups":["{}"]}}}}"#,
        key()
    );
    let body = format!(
        r#"{{"generation":1,"kind":"NetworkPolicy","namespace":"vms","name":"p","tierPriority":250,"priority":5.0,
            "appliedTo":["vm1"],"rules":[{rule}]}}"#
    );
    let hash = "0".repeat(32);
    frame(&format!(r#"{{"frame":"put","kind":"policy","key":"p1","hash":"{hash}","body":{body}}}"#))
}

fn members() -> Frame {
    let hash = "1".repeat(32);
    let added = r#"[{"ref":{"kind":"ExternalEntity","namespace":"vms","name":"e1"},"ips":["10.0.0.1"]}]"#;
    frame(&format!(r#"{{"frame":"members","group":"{}","hash":"{hash}","added":{added},"removed":[]}}"#, key()))
}

fn delete(kind: Kind, key: &str) -> Frame {
    Frame::Change(Change::Delete(ObjectId::new(kind, key).unwrap()))
}

fn commit(n: u64) -> Frame {
    Frame::Commit(Revision::new("e", n))
}

fn gone(uid: &str) -> Frame {
    Frame::Gone { uid: uid.into(), reason: "deleted".to_owned() }
}

fn feed(mirror: &mut Mirror, frames: impl IntoIterator<Item = Frame>) -> Result<Option<Told>, MirrorError> {
    frames.into_iter().map(|frame| mirror.frame(frame)).last().unwrap()
}

/// A mirror of `vms/vm1`, uid u1, with one policy and its group.
fn mirror() -> Mirror {
    let mut mirror = Mirror::default();
    let told = feed(&mut mirror, [hello(true), node("vms/vm1", "u1"), group(), policy(), commit(1)]);
    assert_eq!(told, Ok(Some(Told::Commit(Revision::new("e", 1)))));
    mirror
}

#[test]
fn a_change_waits_for_its_commit() {
    let mut mirror = Mirror::default();
    assert_eq!(feed(&mut mirror, [hello(true), node("vms/vm1", "u1")]), Ok(None));
    assert_eq!((mirror.view(), mirror.complete()), (&View::default(), false));
    feed(&mut mirror, [commit(7)]).unwrap();
    assert_eq!(mirror.view().name().unwrap().to_string(), "vms/vm1");
    assert_eq!((mirror.revision(), mirror.complete()), (Some(&Revision::new("e", 7)), true));
}

#[test]
fn a_full_stream_replaces_the_view_at_its_first_commit_and_only_then() {
    let mut mirror = mirror();
    feed(&mut mirror, [hello(true), node("vms/vm1", "u1")]).unwrap();
    assert_eq!(mirror.view().policies.len(), 1);
    feed(&mut mirror, [commit(2)]).unwrap();
    assert_eq!(mirror.view().policies.len(), 0);
    feed(&mut mirror, [group(), policy(), commit(3)]).unwrap();
    assert!(mirror.view().node.is_some(), "the second commit is a difference");
}

#[test]
fn a_full_stream_that_says_nothing_is_an_empty_view() {
    let mut mirror = mirror();
    feed(&mut mirror, [hello(true), commit(2)]).unwrap();
    assert_eq!(mirror.view(), &View::default());
    assert!(mirror.complete() && mirror.wants_everything());
}

#[test]
fn a_resumed_stream_is_a_difference() {
    let mut mirror = mirror();
    feed(&mut mirror, [hello(false), members(), commit(2)]).unwrap();
    let reference = MemberRef { kind: "ExternalEntity".into(), namespace: "vms".into(), name: "e1".into() };
    let member = Arc::new(Member { ips: ["10.0.0.1".parse().unwrap()].into(), ports: [].into() });
    assert_eq!(mirror.view().groups[&key()].body().members, [(reference, member)].into());
    assert_eq!(mirror.resume().have[&ObjectId::Group(key())].to_string(), "1".repeat(32), "the operator's hash");
    assert_eq!(mirror.view().policies.len(), 1);
}

#[test]
fn nothing_is_believed_before_hello() {
    for frame in [node("vms/vm1", "u2"), members(), commit(2), Frame::Ping, gone("u1")] {
        let mut mirror = mirror();
        mirror.cut();
        let before = mirror.view().clone();
        assert!(matches!(mirror.frame(frame), Err(MirrorError::NoHello { .. })));
        assert_eq!((mirror.view(), mirror.gone()), (&before, false));
    }
}

#[test]
fn what_a_cut_stream_did_not_commit_never_was() {
    let mut mirror = mirror();
    let before = mirror.view().clone();
    feed(&mut mirror, [hello(true), node("vms/vm1", "u2")]).unwrap();
    mirror.cut();
    assert_eq!((mirror.view(), mirror.uid()), (&before, Some(&"u1".into())));
    feed(&mut mirror, [hello(false), commit(2)]).unwrap();
    assert_eq!(mirror.view(), &before);
}

#[test]
fn a_commit_that_dangles_is_refused_and_the_last_good_view_stays() {
    let mut mirror = mirror();
    let before = mirror.view().clone();
    let told = feed(&mut mirror, [hello(false), delete(Kind::Group, &key().to_string()), commit(2)]);
    assert_eq!(told, Err(MirrorError::Dangling { policy: "p1".into(), group: key() }));
    assert_eq!((mirror.view(), mirror.revision()), (&before, Some(&Revision::new("e", 1))));
}

#[test]
fn members_of_an_unknown_group_are_refused() {
    let mut mirror = Mirror::default();
    assert_eq!(feed(&mut mirror, [hello(true), members()]), Err(MirrorError::UnknownGroup(key())));
}

#[test]
fn after_an_error_the_rest_of_the_stream_is_refused() {
    let mut mirror = mirror();
    feed(&mut mirror, [hello(true), members()]).unwrap_err();
    assert_eq!(mirror.frame(commit(2)), Err(MirrorError::NoHello { frame: "commit" }));
    assert_eq!(mirror.frame(gone("u1")), Err(MirrorError::NoHello { frame: "gone" }));
    assert!(!mirror.gone());
}

#[test]
fn after_a_contradiction_only_everything_helps() {
    let mut mirror = mirror();
    assert!(!mirror.wants_everything());
    feed(&mut mirror, [hello(false), delete(Kind::Group, &key().to_string()), commit(2)]).unwrap_err();
    assert!(mirror.wants_everything());
    assert_eq!(mirror.frame(hello(false)), Err(MirrorError::NotFull));
    feed(&mut mirror, [hello(true), node("vms/vm1", "u1"), commit(3)]).unwrap();
    assert!(!mirror.wants_everything());
}

#[test]
fn another_node_is_refused() {
    let other = |expected: &str| MirrorError::AnotherNode {
        expected: expected.parse().unwrap(),
        got: "vms/vm2".parse().unwrap(),
    };
    let mut asked = Mirror::new(Some("vms/vm9".parse().unwrap()));
    assert_eq!(feed(&mut asked, [hello(true), node("vms/vm2", "u1")]), Err(other("vms/vm9")));
    let mut told = mirror();
    assert_eq!(feed(&mut told, [hello(true), node("vms/vm2", "u1")]), Err(other("vms/vm1")));
    assert_eq!(told.view().name().unwrap().to_string(), "vms/vm1");
}

#[test]
fn another_wire_is_refused() {
    let mut mirror = Mirror::default();
    let newer = Frame::Hello(Hello { wire: 2, full: true, heartbeat_seconds: 10 });
    assert_eq!(mirror.frame(newer), Err(MirrorError::Wire { theirs: 2 }));
}

#[test]
fn gone_is_believed_with_the_uid_that_the_mirror_knows() {
    let mut mirror = mirror();
    let before = mirror.view().clone();
    let told = feed(&mut mirror, [hello(false), gone("u1")]);
    assert_eq!(told, Ok(Some(Told::Gone { uid: "u1".into(), reason: "deleted".to_owned() })));
    assert!(mirror.gone());
    assert_eq!(mirror.view(), &before, "whether the policies stay is for the agent to decide");
}

#[test]
fn gone_is_not_believed_with_another_uid() {
    let mut mirror = mirror();
    let told = feed(&mut mirror, [hello(false), gone("u2")]);
    assert_eq!(told, Err(MirrorError::NotMine { gone: "u2".into(), known: Some("u1".into()) }));
    assert!(!mirror.gone());
    let mut empty = Mirror::default();
    let told = feed(&mut empty, [hello(true), gone("u1")]);
    assert_eq!(told, Err(MirrorError::NotMine { gone: "u1".into(), known: None }));
    assert!(!empty.gone());
}

#[test]
fn a_uid_that_was_not_committed_is_not_known() {
    let mut mirror = mirror();
    let told = feed(&mut mirror, [hello(true), node("vms/vm1", "u2"), gone("u2")]);
    assert_eq!(told, Err(MirrorError::NotMine { gone: "u2".into(), known: Some("u1".into()) }));
}

#[test]
fn gone_is_believed_after_the_object_left_the_view() {
    let mut mirror = mirror();
    feed(&mut mirror, [hello(false), delete(Kind::Node, "vms/vm1"), commit(2)]).unwrap();
    assert!(!mirror.gone(), "a deletion alone detaches nobody");
    feed(&mut mirror, [gone("u1")]).unwrap();
    assert!(mirror.gone());
}

#[test]
fn a_node_made_anew_is_not_gone() {
    let mut mirror = mirror();
    feed(&mut mirror, [hello(false), node("vms/vm1", "u2"), commit(2)]).unwrap();
    assert_eq!((mirror.uid(), mirror.gone()), (Some(&"u2".into()), false));
    feed(&mut mirror, [hello(false), gone("u1")]).unwrap_err();
    assert!(!mirror.gone());
}

#[test]
fn a_machine_whose_node_is_gone_may_become_another() {
    let mut mirror = mirror();
    feed(&mut mirror, [hello(false), gone("u1")]).unwrap();
    assert_eq!(mirror.node(), None);
    feed(&mut mirror, [hello(true), node("vms/vm2", "u2"), commit(2)]).unwrap();
    assert_eq!((mirror.node(), mirror.gone()), (Some(&"vms/vm2".parse().unwrap()), false));
}

#[test]
fn a_kept_view_is_continued_from() {
    let kept = Mirror::kept(None, mirror().view().clone(), Some(Revision::new("e", 1)));
    assert!(kept.complete() && !kept.wants_everything());
    assert_eq!(kept.resume(), mirror().resume());
    assert_eq!(kept.resume().uid, Some("u1".into()));
}
