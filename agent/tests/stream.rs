//! Streams as they go in the field: begun, cut, refused, silent, and found again.

// Helpers of tests fail as tests do.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "server/mod.rs"]
mod server;

use std::time::{Duration, Instant};

use agent::mirror::{Loss, Mirror, MirrorError, News, Stream, StreamError, Told, first_commit, follow};
use agent::operator::{CallError, Failure, Kind, Limits, Operator};
use crds::chain::Chain;
use crds::wire::{
    Change, Facts, Frame, Full, Heartbeat, Hello, ObjectId, Report, ReportAnswer, Resume, Revision, Update, View, Want,
};
use futures::future::join_all;
use server::views::{view, web};
use server::{Call, Out, PATIENCE, Server, Site, TOKEN, mute, nobody};
use tokio::join;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The stream of a fresh mirror and its other end.
async fn begun(operator: &Operator, server: &mut Server) -> (Stream, Out) {
    let mirror = Mirror::default();
    let (stream, out) = join!(operator.watch(&mirror), async { server.call().await.stream() });
    (stream.unwrap(), out)
}

async fn fail(stream: &mut Stream) -> Loss {
    match timeout(PATIENCE, stream.next()).await.expect("an end in time") {
        Err(StreamError::Lost { loss, .. }) => loss,
        other => panic!("not lost: {other:?}"),
    }
}

fn refused(result: Result<Stream, CallError>) -> CallError {
    match result {
        Err(error) => error,
        Ok(stream) => panic!("not refused: {stream:?}"),
    }
}

/// Follows in a task of its own; what it tells, with the view at that time.
fn followed(operator: Operator) -> (JoinHandle<()>, mpsc::UnboundedReceiver<(View, News)>) {
    let (tell, told) = mpsc::unbounded_channel();
    let task = tokio::spawn(async move {
        let mut mirror = Mirror::default();
        match follow(&operator, &mut mirror, |mirror, news| drop(tell.send((mirror.view().clone(), news)))).await {}
    });
    (task, told)
}

async fn news(told: &mut mpsc::UnboundedReceiver<(View, News)>) -> (View, News) {
    timeout(PATIENCE, told.recv()).await.expect("news in time").expect("it follows")
}

async fn lost(told: &mut mpsc::UnboundedReceiver<(View, News)>) -> (View, StreamError, Duration) {
    loop {
        if let (view, News::Lost { error, retry_in }) = news(told).await {
            return (view, error, retry_in);
        }
    }
}

async fn committed(told: &mut mpsc::UnboundedReceiver<(View, News)>) -> (View, Revision) {
    loop {
        match news(told).await {
            (view, News::Told(Told::Commit(revision))) => return (view, revision),
            (_, News::Told(_)) => {}
            (_, News::Lost { error, .. }) => panic!("lost: {}", Chain(&error)),
        }
    }
}

#[tokio::test]
async fn a_request_says_who_asks_and_in_which_version() {
    let site = Site::new();
    let mut server = site.server().await;
    let operator = site.operator(&[server.address()]);
    let mirror = Mirror::new(Some("vms/vm1".parse().unwrap()));
    let (stream, call) = join!(operator.watch(&mirror), async {
        let call = server.call().await;
        let seen = (call.method.clone(), call.uri.clone(), call.version, call.headers.clone());
        (seen, call.stream())
    });
    let ((method, uri, version, headers), _out) = call;
    assert_eq!((method.as_str(), uri.path(), version), ("GET", "/v1/watch", hyper::Version::HTTP_2));
    assert_eq!(uri.query(), Some("node=vms%2Fvm1"));
    assert_eq!(headers["outrider-wire"], "1");
    assert_eq!(headers["authorization"], format!("Bearer {TOKEN}"));
    assert_eq!(headers["accept"], "application/x-ndjson");
    assert_eq!(stream.unwrap().peer(), server.address);
}

#[tokio::test]
async fn http_1_is_spoken_where_nothing_newer_is() {
    let site = Site::new();
    let mut server = site.server_with(&["127.0.0.1"], &["http/1.1"]).await;
    let operator = site.operator(&[server.address()]);
    let mut mirror = Mirror::default();
    let (stream, _out) = join!(first_commit(&operator, &mut mirror), async {
        let call = server.call().await;
        assert_eq!(call.version, hyper::Version::HTTP_11);
        let out = call.stream();
        out.everything(&view(2), 1);
        out
    });
    stream.unwrap();
    assert_eq!(mirror.view(), &view(2));
}

#[tokio::test]
async fn every_byte_of_the_frames_is_counted() {
    let site = Site::new();
    let mut server = site.server().await;
    let operator = site.operator(&[server.address()]);
    let mut mirror = Mirror::default();
    let (stream, (sent, out)) = join!(first_commit(&operator, &mut mirror), async {
        let out = server.call().await.stream();
        (out.everything(&view(1000), 1), out)
    });
    let mut stream = stream.unwrap();
    assert_eq!(stream.bytes_received(), sent);
    let small = out.update(&view(1000).diff(&view(1001))) + out.commit(2);
    for _ in 0..2 {
        mirror.frame(stream.next().await.unwrap()).unwrap();
    }
    assert_eq!(mirror.view(), &view(1001));
    assert_eq!(stream.bytes_received(), sent + small);
    assert!(small < 500, "one member of a thousand: {small} bytes");
}

#[tokio::test]
async fn the_files_are_read_at_each_connection() {
    let site = Site::new();
    let mut server = site.server().await;
    let operator = site.operator(&[server.address()]);
    let mirror = Mirror::default();
    for token in ["first", "second"] {
        site.token(token);
        let (error, ()) = join!(operator.watch(&mirror), async {
            let call = server.call().await;
            assert_eq!(call.header("authorization"), format!("Bearer {token}"));
            call.refuse(401, "Unauthorized", "the token has expired");
        });
        assert_eq!(refused(error).kind(), Kind::NotAuthorised);
    }

    let other = Site::new();
    std::fs::copy(other.ca_file(), site.ca_file()).unwrap();
    let error = refused(operator.watch(&mirror).await);
    assert!(error.to_string().contains("invalid peer certificate"), "{error}");
    assert!(error.way_out().contains("the CA file is the operator's"));
    assert_eq!(error.kind(), Kind::Unreachable);
    assert!(server.is_idle(), "no request, and so no token, for whom the CA doesn't vouch");
}

#[tokio::test]
async fn an_address_that_the_certificate_does_not_name_is_refused() {
    let site = Site::new();
    let server = site.server_with(&["operator.example.com"], &["h2"]).await;
    let error = refused(site.operator(&[server.address()]).watch(&Mirror::default()).await);
    assert!(error.way_out().contains("certificate that names this one"), "{error}: {}", error.way_out());
}

#[tokio::test]
async fn a_file_that_is_missing_or_empty_is_named() {
    let site = Site::new();
    let operator = site.operator(&["127.0.0.1:1".to_owned()]);
    for (token, why) in [("", "it is empty"), ("two words", "is no token"), (&"x".repeat(70_000), "is no token")] {
        site.token(token);
        let error = refused(operator.watch(&Mirror::default()).await);
        let told = Chain(&error).to_string();
        assert!(told.contains("token file") && told.contains(why), "{told}");
    }
    std::fs::remove_file(site.token_file()).unwrap();
    let told = Chain(&refused(operator.watch(&Mirror::default()).await)).to_string();
    assert!(told.contains("token: it can't be read: No such file"), "{told}");

    std::fs::write(site.ca_file(), "no certificate").unwrap();
    let told = Chain(&refused(operator.watch(&Mirror::default()).await)).to_string();
    assert!(told.contains("CA file") && told.contains("there is no certificate in it"), "{told}");
}

#[tokio::test]
async fn the_second_address_is_tried_when_the_first_refuses() {
    let site = Site::new();
    let mut server = site.server().await;
    let operator = site.operator(&[nobody().await.to_string(), server.address()]);
    let (stream, _out) = begun(&operator, &mut server).await;
    assert_eq!(stream.peer(), server.address);
}

#[tokio::test]
async fn every_address_of_a_name_is_tried() {
    let site = Site::new();
    let mut server = site.server().await;
    // On most machines ::1 is the first of localhost, where this server doesn't listen.
    let operator = site.operator(&[format!("localhost:{}", server.address.port())]);
    let (stream, _out) = begun(&operator, &mut server).await;
    assert_eq!(stream.peer(), server.address);
}

#[tokio::test]
async fn an_operator_that_is_not_ready_is_passed_over() {
    let site = Site::new();
    let (mut first, mut second) = (site.server().await, site.server().await);
    let operator = site.operator(&[first.address(), second.address()]);
    let mirror = Mirror::default();
    let (stream, (), _out) =
        join!(operator.watch(&mirror), async { first.call().await.refuse(503, "NotReady", "still listing") }, async {
            second.call().await.stream()
        });
    assert_eq!(stream.unwrap().peer(), second.address);
}

#[tokio::test]
async fn a_clear_no_is_not_asked_again_elsewhere() {
    let site = Site::new();
    let (mut first, mut second) = (site.server().await, site.server().await);
    let operator = site.operator(&[first.address(), second.address()]);
    for (code, kind) in [(401, Kind::NotAuthorised), (403, Kind::NotAuthorised), (429, Kind::Other)] {
        let mirror = Mirror::default();
        let (error, ()) = join!(operator.watch(&mirror), async {
            first.call().await.refuse(code, "Because", "of this");
        });
        let error = refused(error);
        assert_eq!(error.to_string(), format!("tried {}: answered {code} Because (of this)", first.address));
        assert_eq!(error.kind(), kind);
    }
    assert!(second.is_idle());
}

#[tokio::test]
async fn when_all_fail_each_is_told() {
    let site = Site::new();
    let mut server = site.server().await;
    let (nobody, (_listener, mute)) = (nobody().await, mute().await);
    let mut settings = site.settings(&[nobody.to_string(), mute.to_string(), server.address()]);
    settings.limits.connect = Duration::from_millis(300);
    let operator = Operator::new(settings);
    let mirror = Mirror::default();
    let (error, ()) = join!(operator.watch(&mirror), async {
        server.call().await.answer_with(505, &[("outrider-wire", "2,3")], "");
    });
    let error = refused(error);
    let told = error.to_string();
    assert!(told.starts_with(&format!("tried {nobody}: Connection refused")), "{told}");
    assert!(told.contains(&format!("{mute}: ")), "{told}");
    let wire = format!("{}: answered 505 (it speaks version 2,3 of the wire, this agent 1)", server.address);
    assert!(told.ends_with(&wire), "{told}");
    assert_eq!(error.way_out(), "install an agent and an operator of the same release");
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_told() {
    let site = Site::new();
    let error = refused(site.operator(&["operator.invalid".to_owned()]).watch(&Mirror::default()).await);
    let CallError::Unanswered { attempts } = &error else { panic!("{error}") };
    assert!(matches!(attempts[..], [ref attempt] if matches!(attempt.failure, Failure::Resolve(_) | Failure::Late(_))));
    assert_eq!(error.kind(), Kind::Unreachable);
}

#[tokio::test]
async fn an_operator_that_never_answers_is_given_up() {
    let site = Site::new();
    let mut server = site.server().await;
    let mut settings = site.settings(&[server.address()]);
    (settings.limits.connect, settings.limits.answer) = (Duration::from_secs(2), Duration::ZERO);
    let operator = Operator::new(settings);
    let mirror = Mirror::default();
    let (error, _call) = join!(operator.watch(&mirror), server.call());
    let CallError::Unanswered { attempts } = refused(error) else { panic!("tried") };
    assert!(matches!(attempts[..], [ref attempt] if matches!(attempt.failure, Failure::Late(_))), "{attempts:?}");
}

#[tokio::test]
async fn an_agent_that_has_something_asks_for_the_difference() {
    let site = Site::new();
    let mut server = site.server().await;
    let operator = site.operator(&[server.address()]);
    let mirror = Mirror::kept(None, view(3), None);
    let (stream, call) = join!(operator.watch(&mirror), async {
        let call = server.call().await;
        let seen = (call.method.clone(), call.uri.clone(), call.body.clone());
        (seen, call.stream())
    });
    let ((method, uri, body), _out) = call;
    assert_eq!((method.as_str(), uri.query()), ("POST", Some("node=vms%2Fvm1")));
    let resume: Resume = serde_json::from_slice(&body).unwrap();
    assert_eq!((resume.uid, resume.have), (Some("u1".into()), view(3).hashes()));
    stream.unwrap();
}

#[tokio::test]
async fn an_operator_that_can_not_use_the_difference_is_asked_for_everything() {
    let site = Site::new();
    let mut server = site.server().await;
    let operator = site.operator(&[server.address()]);
    let mirror = Mirror::kept(None, view(3), None);
    let (stream, _out) = join!(operator.watch(&mirror), async {
        let call = server.call().await;
        assert_eq!(call.method, "POST");
        call.refuse(413, "TooLarge", "more than I read");
        let call = server.call().await;
        assert_eq!((call.method.as_str(), call.uri.query()), ("GET", Some("node=vms%2Fvm1&uid=u1")));
        call.stream()
    });
    stream.unwrap();
}

#[tokio::test]
async fn a_stream_that_is_cut_in_a_line_is_torn() {
    let site = Site::new();
    let mut server = site.server().await;
    let operator = site.operator(&[server.address()]);
    let (mut stream, out) = begun(&operator, &mut server).await;
    out.hello(true, 10);
    out.bytes(&br#"{"frame":"comm"#[..]);
    drop(out);
    assert!(matches!(stream.next().await, Ok(Frame::Hello(_))));
    assert!(matches!(fail(&mut stream).await, Loss::Torn));
}

#[tokio::test]
async fn a_stream_that_ends_is_over_and_one_that_breaks_is_broken() {
    let site = Site::new();
    let mut server = site.server().await;
    let operator = site.operator(&[server.address()]);
    let (mut stream, out) = begun(&operator, &mut server).await;
    drop(out);
    assert!(matches!(fail(&mut stream).await, Loss::Ended));
    let (mut stream, out) = begun(&operator, &mut server).await;
    out.cut();
    assert!(matches!(fail(&mut stream).await, Loss::Broken(_)));
}

#[tokio::test]
async fn garbage_is_no_frame() {
    let site = Site::new();
    let mut server = site.server().await;
    let operator = site.operator(&[server.address()]);
    for garbage in ["<html>\n", "{\"frame\":\"dance\"}\n", "\u{0}\n", "{\"frame\":\"hello\"}\n", "[]\n"] {
        let (mut stream, out) = begun(&operator, &mut server).await;
        out.bytes(garbage);
        assert!(matches!(fail(&mut stream).await, Loss::Garbage(_)), "{garbage:?}");
    }
}

#[tokio::test]
async fn silence_is_the_end_of_a_stream() {
    let site = Site::new();
    let mut server = site.server().await;
    let mut settings = site.settings(&[server.address()]);
    settings.limits.hello = Duration::from_millis(200);
    let operator = Operator::new(settings);
    let (mut stream, _out) = begun(&operator, &mut server).await;
    assert!(matches!(fail(&mut stream).await, Loss::Silent(limit) if limit == Duration::from_millis(200)));

    let (mut stream, out) = begun(&operator, &mut server).await;
    out.hello(true, 1);
    stream.next().await.unwrap();
    let begin = Instant::now();
    assert!(matches!(fail(&mut stream).await, Loss::Silent(limit) if limit == Duration::from_millis(1500)));
    assert!(begin.elapsed() >= Duration::from_millis(1400), "not before one and a half heartbeats");
}

#[tokio::test]
async fn a_slow_line_is_no_silence() {
    let site = Site::new();
    let mut server = site.server().await;
    let mut settings = site.settings(&[server.address()]);
    settings.limits.hello = Duration::from_secs(2);
    let operator = Operator::new(settings);
    let (mut stream, out) = begun(&operator, &mut server).await;
    let line = Frame::Hello(Hello { wire: 1, full: true, heartbeat_seconds: 10 }).encode();
    let begin = Instant::now();
    let (frame, ()) = join!(stream.next(), async {
        for piece in line.chunks(line.len().div_ceil(4)) {
            // slowness is what this test is about
            tokio::time::sleep(Duration::from_millis(800)).await;
            out.bytes(piece.to_vec());
        }
    });
    assert!(matches!(frame, Ok(Frame::Hello(_))), "{frame:?}");
    assert!(begin.elapsed() > Duration::from_secs(2), "the line took longer than any silence may");
}

#[tokio::test]
async fn a_line_without_end_and_changes_without_commit_are_bounded() {
    let site = Site::new();
    let mut server = site.server().await;
    let mut settings = site.settings(&[server.address()]);
    settings.limits = Limits { line: 1000, commit: 5000, ..settings.limits };
    let operator = Operator::new(settings);
    let (mut stream, out) = begun(&operator, &mut server).await;
    out.bytes("x".repeat(1001));
    assert!(matches!(fail(&mut stream).await, Loss::LongLine(1000)));

    let (mut stream, out) = begun(&operator, &mut server).await;
    out.bytes(format!("{}\n", "x".repeat(1001)));
    assert!(matches!(fail(&mut stream).await, Loss::LongLine(1000)), "also with its end");

    let (mut stream, out) = begun(&operator, &mut server).await;
    let pings = |n| Frame::Ping.encode().repeat(n);
    for _ in 0..3 {
        out.bytes(pings(200));
        out.commit(1);
        for _ in 0..201 {
            stream.next().await.unwrap();
        }
    }
    assert!(stream.bytes_received() > 5000, "a stream may be longer, when it commits");
    out.bytes(pings(400));
    let end = async {
        loop {
            if let Err(StreamError::Lost { loss, .. }) = stream.next().await {
                break loss;
            }
        }
    };
    assert!(matches!(timeout(PATIENCE, end).await.expect("an end in time"), Loss::LongCommit(5000)));
}

#[tokio::test]
async fn a_follower_goes_on_where_the_stream_was_cut() {
    let site = Site::new();
    let mut server = site.server().await;
    let (task, mut told) = followed(site.operator(&[server.address()]));

    let out = server.call().await.stream();
    out.everything(&view(2), 1);
    assert_eq!(committed(&mut told).await, (view(2), Revision::new("e", 1)));
    // a change that isn't committed when the stream is cut
    out.update(&view(2).diff(&view(9)));
    out.cut();
    let (before, error, retry_in) = lost(&mut told).await;
    assert_eq!(before, view(2), "{error}");
    assert!(retry_in <= Duration::from_millis(400), "the first wait is short: {retry_in:?}");

    let call = server.call().await;
    assert_eq!(call.method, "POST");
    let resume: Resume = serde_json::from_slice(&call.body).unwrap();
    let out = call.stream();
    out.hello(false, 10);
    out.update(&view(3).since(&resume.have));
    out.commit(7);
    assert_eq!(committed(&mut told).await, (view(3), Revision::new("e", 7)));
    task.abort();
    out.abandoned().await;
}

#[tokio::test]
async fn no_refusal_ever_means_gone() {
    let site = &Site::new();
    let codes = [400, 401, 403, 404, 410, 421, 429, 500, 503, 505];
    join_all(codes.map(|code| async move {
        let mut server = site.server().await;
        let (task, mut told) = followed(site.operator(&[server.address()]));
        server.call().await.stream().everything(&view(2), 1);
        committed(&mut told).await;
        assert_eq!(lost(&mut told).await.0, view(2), "nor does the end of a stream");
        let mut call = server.call().await;
        if code == 400 {
            call.refuse(code, "Refused", "first the difference, then everything");
            call = server.call().await;
        }
        call.refuse(code, "Refused", "in this test");
        let (kept, error, _) = lost(&mut told).await;
        assert!(error.to_string().ends_with(&format!("answered {code} Refused (in this test)")), "{error}");
        assert_eq!(kept, view(2));
        assert_eq!(server.call().await.method, "POST", "it comes back");
        task.abort();
    }))
    .await;
}

#[tokio::test]
async fn an_operator_that_asks_for_time_gets_it() {
    let site = Site::new();
    let mut server = site.server().await;
    let (task, mut told) = followed(site.operator(&[server.address()]));
    let call = server.call().await;
    call.answer_with(429, &[("retry-after", "1")], r#"{"code":429,"reason":"TooManyRequests","message":"slowly"}"#);
    let (_, error, retry_in) = lost(&mut told).await;
    assert_eq!(error.retry_after(), Some(Duration::from_secs(1)));
    assert!(retry_in >= Duration::from_secs(1), "{retry_in:?}");
    let begin = Instant::now();
    server.call().await.refuse(503, "", "");
    assert!(begin.elapsed() >= Duration::from_millis(900));
    task.abort();
}

#[tokio::test]
async fn waits_grow_until_a_commit() {
    let site = Site::new();
    let mut server = site.server().await;
    let (task, mut told) = followed(site.operator(&[server.address()]));
    for longest in [400, 800, 1600] {
        // hello alone is no proof that the operator is well
        server.call().await.stream().hello(true, 10);
        let (_, _, retry_in) = lost(&mut told).await;
        assert!(retry_in <= Duration::from_millis(longest), "{retry_in:?}");
    }
    server.call().await.stream().everything(&view(1), 1);
    let (_, _, retry_in) = lost(&mut told).await;
    assert!(retry_in <= Duration::from_millis(400), "{retry_in:?}");
    task.abort();
}

#[tokio::test]
async fn a_commit_without_hello_is_refused() {
    let site = Site::new();
    let mut server = site.server().await;
    let (task, mut told) = followed(site.operator(&[server.address()]));
    let out = server.call().await.stream();
    out.commit(1);
    let (_, error, _) = lost(&mut told).await;
    let no_hello = MirrorError::NoHello { frame: "commit" };
    assert!(matches!(error, StreamError::Lost { loss: Loss::Disbelieved(why), .. } if why == no_hello));
    out.abandoned().await;
    task.abort();
}

#[tokio::test]
async fn after_a_commit_that_dangles_everything_is_asked_for() {
    let site = Site::new();
    let mut server = site.server().await;
    let (task, mut told) = followed(site.operator(&[server.address()]));
    let out = server.call().await.stream();
    out.everything(&view(2), 1);
    committed(&mut told).await;
    out.update(&Update { changes: vec![Change::Delete(ObjectId::Group(web()))] });
    out.commit(2);
    let (kept, error, _) = lost(&mut told).await;
    assert_eq!(kept, view(2), "{error}");
    let call: Call = server.call().await;
    assert_eq!((call.method.as_str(), call.uri.query()), ("GET", Some("node=vms%2Fvm1&uid=u1")));
    call.stream().everything(&view(5), 3);
    assert_eq!(committed(&mut told).await.0, view(5));
    task.abort();
}

#[tokio::test]
async fn gone_is_told_and_the_view_stays() {
    let site = Site::new();
    let mut server = site.server().await;
    let (task, mut told) = followed(site.operator(&[server.address()]));
    let out = server.call().await.stream();
    out.everything(&view(2), 1);
    committed(&mut told).await;
    out.frame(&Frame::Gone { uid: "u1".into(), reason: "deleted".to_owned() });
    let (kept, News::Told(gone)) = news(&mut told).await else { panic!("told") };
    assert_eq!(gone, Told::Gone { uid: "u1".into(), reason: "deleted".to_owned() });
    assert_eq!(kept, view(2));
    task.abort();
}

#[tokio::test]
async fn a_lost_operator_is_left_for_the_next_one() {
    let site = Site::new();
    let (mut first, mut second) = (site.server().await, site.server().await);
    let (task, mut told) = followed(site.operator(&[first.address(), second.address()]));
    first.call().await.stream().everything(&view(1), 1);
    committed(&mut told).await;
    lost(&mut told).await;
    let out = second.call().await.stream();
    assert!(first.is_idle(), "the one that was lost is not asked first");
    out.hello(false, 10);
    out.commit(1);
    committed(&mut told).await;
    drop(out);
    lost(&mut told).await;
    assert_eq!(first.call().await.method, "POST", "and back");
    assert!(second.is_idle());
    task.abort();
}

fn heartbeat() -> Report {
    let head = Heartbeat { node: "vms/vm1".parse().unwrap(), uid: "u1".into(), revision: None, digest: "d".to_owned() };
    Report::Heartbeat(head)
}

#[tokio::test]
async fn a_report_travels_on_the_connection_of_the_stream() {
    let site = Site::new();
    let mut server = site.server().await;
    let operator = site.operator(&[server.address()]);
    let mirror = Mirror::default();
    let (stream, (from, _out)) = join!(operator.watch(&mirror), async {
        let call = server.call().await;
        (call.from, call.stream())
    });
    let _stream = stream.unwrap();
    let Report::Heartbeat(head) = heartbeat() else { panic!("a heartbeat") };
    let (policies, interfaces, attach, facts) = (vec![], vec![], vec![], Facts::default());
    let full = Report::Full(Box::new(Full { head, policies, interfaces, attach, facts }));
    for (report, answer, told) in [(heartbeat(), r#"{"want":"full"}"#, Some(Want::Full)), (full, "{}", None)] {
        let (answered, ()) = join!(operator.report(&report), async {
            let call = server.call().await;
            assert_eq!((call.method.as_str(), call.uri.path(), call.from), ("POST", "/v1/report", from));
            assert_eq!(call.header("content-type"), "application/json");
            assert_eq!(Report::decode(&call.body).unwrap(), report);
            call.answer(200, answer);
        });
        assert_eq!(answered.unwrap(), ReportAnswer { want: told });
    }
}

#[tokio::test]
async fn a_report_finds_its_own_way_without_a_stream() {
    let site = Site::new();
    let (mut first, mut second) = (site.server().await, site.server().await);
    let operator = site.operator(&[first.address(), second.address()]);
    let report = heartbeat();
    let (answered, (), ()) =
        join!(operator.report(&report), async { first.call().await.refuse(503, "NotReady", "") }, async {
            second.call().await.answer(200, "{}");
        });
    assert_eq!(answered.unwrap(), ReportAnswer::default());
    // that connection is there now
    let (answered, ()) = join!(operator.report(&report), async { second.call().await.refuse(403, "Forbidden", "no") });
    assert_eq!(answered.unwrap_err().kind(), Kind::NotAuthorised);
    let (answered, ()) = join!(operator.report(&report), async { second.call().await.answer(200, "<html>") });
    assert!(matches!(answered, Err(CallError::Garbage { .. })));
    assert!(first.is_idle());
}

#[tokio::test]
async fn no_debug_output_shows_the_token() {
    let site = Site::new();
    let mut server = site.server().await;
    let operator = site.operator(&[server.address()]);
    let (stream, _out) = begun(&operator, &mut server).await;
    assert!(!format!("{operator:?} {stream:?}").contains(TOKEN));
}
