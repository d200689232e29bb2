use std::convert::Infallible;

use axum::http::{Method, Request, Response, StatusCode};
use crds::wire::AttachStage;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::*;
use crate::testing::{Objects, key, report, world};

/// How often agents report here: their silence is judged before a failure is tried again.
const SHORT: Duration = Duration::from_secs(1);

/// An API server that takes every write but those to paths with `refused` in them, and remembers what it was asked.
#[derive(Clone)]
struct Server {
    refused: &'static str,
    asked: watch::Sender<Vec<String>>,
}

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let answer = move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        };
        Client::new(tower::service_fn(answer), "outrider")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = axum::body::to_bytes(axum::body::Body::new(body), usize::MAX).await.unwrap();
        let path = head.uri.path();
        if !path.contains("/events") {
            let object = path.rsplit('/').take(2).collect::<Vec<_>>();
            self.asked.send_modify(|asked| asked.push(format!("{} {}/{}", head.method, object[1], object[0])));
        }
        let (status, body) = match head.method {
            _ if path.contains(self.refused) => {
                let failure = kube::core::Status::failure("no rights", "Forbidden").with_code(403);
                (StatusCode::FORBIDDEN, serde_json::to_vec(&failure).unwrap())
            }
            Method::DELETE => (StatusCode::OK, br#"{"kind":"Status","status":"Success"}"#.to_vec()),
            _ => {
                let mut object: Value = serde_json::from_slice(&body).unwrap();
                object["metadata"]["resourceVersion"] = json!("1000");
                (StatusCode::OK, serde_json::to_vec(&object).unwrap())
            }
        };
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        response
    }

    fn asked(&self) -> Vec<String> {
        self.asked.send_replace(vec![])
    }
}

/// A writer that leads, has seen `objects`, and writes to a server that refuses some paths.
fn writer(objects: Objects, refused: &'static str) -> (Writer, Server) {
    let server = Server { refused, asked: watch::Sender::default() };
    let now = Instant::now();
    // its sender may go: nobody waits for a change of it
    let (_, leading) = watch::channel(Leadership::Leading { since: now, until: now + SHORT * 600 });
    let events = Events::new(server.client(), "test".to_owned());
    (Writer { hub: Arc::new(objects.hub(SHORT)), client: server.client(), leading, events, beat: SHORT }, server)
}

#[tokio::test]
async fn a_refused_agent_info_holds_up_no_status_and_is_tried_again() {
    let node = world().node("vms/vm1").interface("eth0", ["10.0.0.5"]);
    let (writer, server) = writer(node, "antreaagentinfos");
    let work = Work::Node(key("vms/vm1"));
    let outcome = writer.clone().perform(work.clone(), false).await;
    assert_eq!(server.asked(), ["POST v1beta1/antreaagentinfos", "PUT vm1/status"]);
    assert!(outcome.result.unwrap_err().to_string().contains("AntreaAgentInfo"), "it is tried again");
    _ = writer.perform(work, false).await;
    assert_eq!(server.asked(), ["POST v1beta1/antreaagentinfos"], "the status stands");
}

#[tokio::test]
async fn a_refused_tier_holds_up_no_other() {
    let (writer, server) = writer(world(), "/tiers");
    assert!(writer.perform(Work::Tiers, false).await.result.is_err());
    assert_eq!(server.asked().len(), crds::tier::BUILT_IN.len());
}

#[tokio::test]
async fn an_entity_whose_successor_is_refused_stays() {
    // the interface was called otherwise when the entity was made
    let renamed = || {
        let node = world().node("vms/vm1").interface("eth0", ["10.0.0.5"]);
        node.entity("vms/vm1-old").endpoint("10.0.0.5", "old").owned_by("vms/vm1")
    };
    let work = Work::Entity(key("vms/vm1-old"));
    let (taken, server) = writer(renamed(), "nothing");
    assert!(taken.perform(work.clone(), false).await.result.is_ok());
    assert_eq!(server.asked(), ["POST vms/externalentities", "DELETE externalentities/vm1-old"]);
    let (refused, server) = writer(renamed(), "externalentities");
    assert!(refused.perform(work, false).await.result.is_err());
    assert_eq!(server.asked(), ["POST vms/externalentities"]);
}

#[tokio::test]
async fn a_failure_puts_off_no_judgement_of_silence() {
    let node = world().node("vms/vm1").interface("eth0", ["10.0.0.5"]);
    let (writer, _) = writer(node, "antreaagentinfos");
    writer.hub.report(report("vms/vm1").report());
    let outcome = writer.perform(Work::Node(key("vms/vm1")), false).await;
    assert!(outcome.result.is_err());
    let (mut queue, now) = (Queue::default(), Instant::now());
    for _ in 0..20 {
        queue.add(outcome.work.clone());
        queue.pop(now).unwrap();
        queue.failed(&outcome.work, now, 0.0, None);
    }
    assert!(queue.next_due().unwrap() > now + SHORT * 10, "the next try is far");
    queue.add(outcome.work.clone());
    queue.pop(now).unwrap();
    Writer::ended(Ok(outcome), &mut queue);
    assert!(queue.next_due().unwrap() < Instant::now() + SHORT * 4, "silence is late after three heartbeats");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_says_something_else_all_the_time_is_written_once_a_second() {
    let node = world().node("vms/vm1").interface("eth0", ["10.0.0.5"]);
    let (mut writer, server) = writer(node, "nothing");
    let (_leads, leading) = watch::channel(writer.leading.borrow().clone());
    writer.leading = leading;
    let hub = Arc::clone(&writer.hub);
    let say = |n: u32| {
        let refused = report("vms/vm1").stage("eth0", AttachStage::Refused, &n.to_string());
        hub.report(refused.facts(|facts| facts.version = n.to_string()).report());
    };
    tokio::spawn(writer.run(CancellationToken::new()));
    let status_is_written = async || {
        let is_written = |asked: &Vec<String>| asked.iter().any(|asked| asked == "PUT vm1/status");
        let mut asked = server.asked.subscribe();
        timeout(SHORT * 60, asked.wait_for(is_written)).await.expect("it is written").unwrap();
    };
    status_is_written().await;
    // quiet: all that followed from it is looked at
    sleep(SHORT * 5).await;
    server.asked();
    let start = Instant::now();
    say(0);
    status_is_written().await;
    assert_eq!(start.elapsed(), Duration::ZERO, "the first after quiet is written at once");
    for n in 1..=200 {
        say(n);
        sleep(SHORT / 20).await;
    }
    sleep(SHORT * 2).await;
    let (statuses, infos): (Vec<_>, Vec<_>) = server.asked().into_iter().partition(|asked| asked == "PUT vm1/status");
    assert!((10..=12).contains(&statuses.len()), "{statuses:?}");
    assert!((10..=12).contains(&infos.len()), "{infos:?}");
    let status = hub.live().world().external_nodes[&key("vms/vm1")].good().unwrap().status.clone().unwrap();
    assert_eq!(status.agent_version.as_deref(), Some("200"), "the last word is written");
}
