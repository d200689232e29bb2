use serde_json::json;

use super::*;
use crate::testing::{said, world};

const TIER: WorldKind = WorldKind::Tier;

#[test]
fn the_built_in_tiers_are_made() {
    let mut scene = world().tier("mine", 9).scene();
    scene.settle();
    let tiers = scene.api.all(TIER).map(|(key, tier)| (key.to_string(), tier["spec"]["priority"].as_i64().unwrap()));
    let wanted = [
        ("application", 250),
        ("baseline", 253),
        ("emergency", 50),
        ("mine", 9),
        ("networkops", 150),
        ("platform", 200),
        ("securityops", 100),
    ];
    assert_eq!(tiers.collect::<Vec<_>>(), wanted.map(|(name, priority)| (name.to_owned(), priority)));
    assert_eq!(scene.unfinished(), [""; 0]);
}

#[test]
fn a_changed_priority_is_put_back_and_a_description_is_the_users() {
    let mut scene = world().tier("emergency", 51).with(&["spec", "description"], json!("ours")).scene();
    assert_eq!(said(&plan(scene.live.world()))[0], "update Tier emergency");
    scene.settle();
    let spec = json!({"priority": 50, "description": "ours"});
    assert_eq!(scene.api.get(TIER, "emergency").unwrap()["spec"], spec);
}

#[test]
fn a_deleted_one_is_back_and_one_that_is_going_is_awaited() {
    let mut scene = world().scene();
    scene.settle();
    scene.delete(TIER, "platform");
    assert_eq!(scene.settle(), ["create Tier platform"]);
    scene.api.edit(TIER, &Key::cluster("platform"), |tier| {
        tier["spec"]["priority"] = json!(1);
        tier["metadata"]["finalizers"] = json!(["foreign.example.com/a"]);
    });
    scene.delete(TIER, "platform");
    assert_eq!(scene.settle(), [""; 0]);
}

#[test]
fn one_that_can_not_be_read_is_written_anew() {
    let mut scene = world().tier("platform", 200).with(&["spec", "priority"], json!("high")).scene();
    assert!(scene.settle().contains(&"update Tier platform".to_owned()));
    assert_eq!(scene.unfinished(), [""; 0]);
}
