//! Another product that owns the kinds we share: then we don't write them, and say so.

use std::time::Duration;

use crds::world::World;
use jiff::Timestamp;

/// How long a foreign controller's sign of life counts.
const ALIVE: Duration = Duration::from_mins(5);

/// How often work that had to be left is looked at again.
pub const RECHECK: Duration = Duration::from_secs(15);

/// How often at most it is said.
pub const SAY: Duration = Duration::from_mins(1);

/// The validating webhook by which the other product is known.
const WEBHOOK: &str = "crdvalidator.antrea.io";

/// Who owns the shared kinds, if another controller does: what was seen, and what to switch off.
pub fn owner(world: &World, now: Timestamp) -> Option<String> {
    let alive =
        world.controller_infos.iter().filter_map(|(key, stored)| Some((key, stored.good()?.last_heartbeat()?.0)));
    let alive = alive.filter(|(_, heard)| now.duration_since(*heard).unsigned_abs() < ALIVE).map(|(key, _)| {
        format!("a live AntreaControllerInfo {key} is in this cluster; stop that controller, or remove this operator, since only one of them may own the kinds of crd.antrea.io")
    });
    let webhooks = world.validating_webhooks.keys().filter(|key| &*key.name == WEBHOOK).map(|key| {
        format!("the validating webhook {key} is in this cluster; remove it with its controller, or remove this operator, since only one of them may own the kinds of crd.antrea.io")
    });
    alive.chain(webhooks).next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::world::{Event, Object, WorldKind};
    use kube::core::DynamicObject;
    use serde_json::json;

    fn world(kind: WorldKind, object: serde_json::Value) -> World {
        let mut world = World::waiting_for(&[]);
        world.apply(Event::Put(Object::decode(kind, serde_json::from_value::<DynamicObject>(object).unwrap())));
        world
    }

    fn info(heard: &str) -> World {
        world(
            WorldKind::ControllerInfo,
            json!({"metadata": {"name": "antrea-controller"}, "controllerConditions":
            [{"type": "ControllerHealthy", "status": "True", "lastHeartbeatTime": heard}]}),
        )
    }

    #[test]
    fn a_controller_that_was_heard_within_five_minutes_owns_the_kinds() {
        let now: Timestamp = "2026-01-01T12:05:00Z".parse().unwrap();
        assert!(owner(&info("2026-01-01T12:00:01Z"), now).is_some_and(|why| why.contains("antrea-controller")));
        assert_eq!(owner(&info("2026-01-01T11:59:59Z"), now), None);
        assert_eq!(owner(&World::waiting_for(&[]), now), None);
    }

    #[test]
    fn its_webhook_alone_is_a_sign_too_and_other_webhooks_are_none() {
        let webhook = |name| world(WorldKind::ValidatingWebhook, json!({"metadata": {"name": name}}));
        assert!(owner(&webhook("crdvalidator.antrea.io"), Timestamp::now()).is_some());
        assert_eq!(owner(&webhook("policies.example.com"), Timestamp::now()), None);
    }
}
