use std::sync::{Arc, Mutex};

use jiff::SignedDuration;
use proptest::prelude::*;

use super::*;

const RETRY: Duration = Duration::from_secs(2);

fn settings(identity: &str) -> Settings {
    Settings::new("outrider", "outrider-operator", identity)
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// What an API server keeps: one object, a version that every write moves on, and a refusal of stale writes.
#[derive(Debug, Default)]
struct Stored {
    lease: Option<Lease>,
    version: u64,
}

impl Stored {
    fn create(&mut self, lease: &Lease) -> Result<Lease, Trouble> {
        if self.lease.is_some() {
            return Err(Trouble::Conflict);
        }
        Ok(self.store(lease))
    }

    fn replace(&mut self, lease: &Lease) -> Result<Lease, Trouble> {
        let known = self.lease.as_ref().map(|stored| &stored.metadata.resource_version);
        if known != Some(&lease.metadata.resource_version) {
            return Err(Trouble::Conflict);
        }
        Ok(self.store(lease))
    }

    fn store(&mut self, lease: &Lease) -> Lease {
        // A write that changes nothing isn't stored, as with the real one.
        if let Some(stored) = self.lease.as_ref().filter(|stored| stored.spec == lease.spec) {
            return stored.clone();
        }
        self.version += 1;
        let mut lease = lease.clone();
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease.insert(lease).clone()
    }

    fn holder(&self) -> Option<String> {
        self.lease.as_ref()?.spec.as_ref()?.holder_identity.clone()
    }
}

mod decisions {
    use super::*;

    /// A candidate, a clock, and an API that answers at once.
    struct Bench {
        candidate: Candidate,
        now: Instant,
        wall: Timestamp,
        action: Action,
    }

    impl Bench {
        fn new(identity: &str) -> Self {
            let mut bench = Self {
                candidate: Candidate::new(settings(identity)),
                now: Instant::now(),
                wall: Timestamp::UNIX_EPOCH,
                action: Action::Wait(Duration::ZERO),
            };
            bench.tell(Event::Woke);
            bench
        }

        fn tell(&mut self, event: Event) -> &Action {
            let at = Moment { now: self.now, wall: self.wall, jitter: 0.5 };
            self.action = self.candidate.step(event, &at);
            &self.action
        }

        fn pass(&mut self, time: Duration) {
            self.now += time;
            self.wall += SignedDuration::try_from(time).unwrap();
        }

        fn answer(&mut self, api: &mut Stored) {
            let event = match &self.action {
                Action::Wait(_) => Event::Woke,
                Action::Get => Event::Got(api.lease.clone()),
                Action::Create(lease) => api.create(lease).map_or(Event::Conflict, Event::Wrote),
                Action::Replace(lease) => api.replace(lease).map_or(Event::Conflict, Event::Wrote),
            };
            self.tell(event);
        }

        /// One try: from waking to the next wait.
        fn round(&mut self, api: &mut Stored) {
            self.tell(Event::Woke);
            while !matches!(self.action, Action::Wait(_)) {
                self.answer(api);
            }
        }

        fn leads(&self) -> bool {
            matches!(self.candidate.leadership(self.now), Leadership::Leading { until, .. } if self.now < until)
        }
    }

    #[test]
    fn a_lease_that_does_not_exist_is_created_and_led() {
        let (mut api, mut a) = (Stored::default(), Bench::new("a"));
        a.round(&mut api);
        assert!(a.leads());
        let lease = api.lease.unwrap();
        assert_eq!(lease.metadata.name.as_deref(), Some("outrider-operator"));
        let spec = lease.spec.unwrap();
        assert_eq!(spec.holder_identity.as_deref(), Some("a"));
        assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(15), Some(0)));
    }

    #[test]
    fn a_lease_of_another_is_left_alone_until_it_stands_still_for_its_duration() {
        let (mut api, mut a, mut b) = (Stored::default(), Bench::new("a"), Bench::new("b"));
        a.round(&mut api);
        b.round(&mut api);
        assert_eq!(b.candidate.leadership(b.now), Leadership::Following { holder: Some("a".to_owned()) });
        b.pass(seconds(14));
        b.round(&mut api);
        assert!(!b.leads());
        b.pass(seconds(1));
        b.round(&mut api);
        assert!(b.leads());
        assert_eq!(api.lease.unwrap().spec.unwrap().lease_transitions, Some(1));
    }

    #[test]
    fn the_duration_that_counts_is_the_one_the_holder_wrote() {
        let mut long = settings("a");
        long.lease_duration = seconds(60);
        let (mut api, mut a, mut b) = (Stored::default(), Bench::new("a"), Bench::new("b"));
        a.candidate = Candidate::new(long);
        a.round(&mut api);
        b.round(&mut api);
        b.pass(seconds(59));
        b.round(&mut api);
        assert!(!b.leads());
    }

    #[test]
    fn a_wall_clock_of_another_machine_decides_nothing() {
        for skew in [-1_000_000, 1_000_000] {
            let (mut api, mut a, mut b) = (Stored::default(), Bench::new("a"), Bench::new("b"));
            a.wall += SignedDuration::from_secs(skew);
            a.round(&mut api);
            b.round(&mut api);
            assert!(!b.leads(), "skew {skew}");
            b.pass(seconds(15));
            b.round(&mut api);
            assert!(b.leads(), "skew {skew}");
        }
    }

    #[test]
    fn an_annotation_is_no_sign_of_life() {
        let (mut api, mut a, mut b) = (Stored::default(), Bench::new("a"), Bench::new("b"));
        a.round(&mut api);
        b.round(&mut api);
        b.pass(seconds(14));
        api.lease.as_mut().unwrap().metadata.resource_version = Some("annotated".to_owned());
        b.round(&mut api);
        b.pass(seconds(1));
        b.round(&mut api);
        assert!(b.leads());
    }

    #[test]
    fn a_renewal_is_seen_even_where_the_wall_clock_stands_still() {
        let (mut api, mut a) = (Stored::default(), Bench::new("a"));
        a.round(&mut api);
        let first = api.version;
        a.now += RETRY;
        a.round(&mut api);
        assert_eq!(api.version, first + 1);
    }

    #[test]
    fn a_leader_that_renews_keeps_its_term() {
        let (mut api, mut a) = (Stored::default(), Bench::new("a"));
        a.round(&mut api);
        let acquired = api.lease.clone().unwrap().spec.unwrap().acquire_time;
        let since = a.now;
        for _ in 0..20 {
            a.pass(RETRY);
            a.round(&mut api);
        }
        let until = a.now + seconds(10);
        assert_eq!(a.candidate.leadership(a.now), Leadership::Leading { since, until });
        assert_eq!(api.lease.unwrap().spec.unwrap().acquire_time, acquired);
    }

    #[test]
    fn the_deadline_counts_from_when_the_renewal_was_sent() {
        let (mut api, mut a) = (Stored::default(), Bench::new("a"));
        a.tell(Event::Woke);
        a.answer(&mut api);
        let sent = a.now;
        a.pass(seconds(4));
        a.answer(&mut api);
        assert_eq!(a.candidate.leads_until(), Some(sent + seconds(10)));
    }

    #[test]
    fn an_answer_that_comes_after_the_deadline_makes_no_leader() {
        let (mut api, mut a) = (Stored::default(), Bench::new("a"));
        a.tell(Event::Woke);
        a.answer(&mut api);
        a.pass(seconds(10));
        a.answer(&mut api);
        assert!(!a.leads());
    }

    #[test]
    fn a_leader_stops_at_its_deadline_without_an_answer() {
        let (mut api, mut a) = (Stored::default(), Bench::new("a"));
        a.round(&mut api);
        a.pass(seconds(9));
        a.tell(Event::Failed);
        assert!(a.leads());
        a.pass(seconds(1));
        assert!(!a.leads(), "even before the next step");
        a.tell(Event::Woke);
        assert_eq!(a.candidate.leads_until(), None);
    }

    #[test]
    fn a_stale_writer_is_refused_and_learns_who_leads() {
        let (mut api, mut a, mut b) = (Stored::default(), Bench::new("a"), Bench::new("b"));
        a.round(&mut api);
        b.round(&mut api);
        a.tell(Event::Woke);
        let Action::Replace(stale) = a.action.clone() else { panic!("a leader renews without asking: {:?}", a.action) };
        b.pass(seconds(15));
        b.round(&mut api);
        a.pass(seconds(16));
        assert!(matches!(api.replace(&stale), Err(Trouble::Conflict)));
        assert_eq!(a.tell(Event::Conflict), &Action::Get);
        a.answer(&mut api);
        assert_eq!(a.candidate.leadership(a.now), Leadership::Following { holder: Some("b".to_owned()) });
        assert_eq!(api.holder().as_deref(), Some("b"));
    }

    #[test]
    fn a_leader_whose_object_was_touched_renews_all_the_same() {
        let (mut api, mut a) = (Stored::default(), Bench::new("a"));
        a.round(&mut api);
        a.pass(RETRY);
        api.lease.as_mut().unwrap().metadata.resource_version = Some("touched".to_owned());
        a.round(&mut api);
        assert_eq!(a.candidate.leads_until(), Some(a.now + seconds(10)));
    }

    #[test]
    fn conflict_after_conflict_is_answered_with_patience() {
        let (mut api, mut a) = (Stored::default(), Bench::new("a"));
        a.tell(Event::Woke);
        a.answer(&mut api);
        assert_eq!(a.tell(Event::Conflict), &Action::Get);
        a.answer(&mut api);
        assert!(matches!(a.tell(Event::Conflict), Action::Wait(wait) if *wait >= RETRY));
    }

    #[test]
    fn a_released_lease_is_taken_at_once() {
        let (mut api, mut a, mut b) = (Stored::default(), Bench::new("a"), Bench::new("b"));
        a.round(&mut api);
        b.round(&mut api);
        assert!(a.candidate.resign());
        let released = a.candidate.released(api.lease.as_ref().unwrap(), a.wall).unwrap();
        api.replace(&released).unwrap();
        b.round(&mut api);
        assert!(b.leads());
    }

    #[test]
    fn an_empty_holder_counts_as_released_too() {
        let (mut api, mut a, mut b) = (Stored::default(), Bench::new("a"), Bench::new("b"));
        a.round(&mut api);
        api.lease.as_mut().unwrap().spec.as_mut().unwrap().holder_identity = Some(String::new());
        b.round(&mut api);
        assert!(b.leads());
    }

    #[test]
    fn nobody_releases_the_lease_of_another() {
        let (mut api, mut a, mut b) = (Stored::default(), Bench::new("a"), Bench::new("b"));
        a.round(&mut api);
        b.round(&mut api);
        assert!(!b.candidate.resign());
        assert_eq!(b.candidate.released(api.lease.as_ref().unwrap(), b.wall), None);
    }

    #[test]
    fn a_restart_with_the_same_identity_goes_on_without_a_transition() {
        let (mut api, mut a) = (Stored::default(), Bench::new("a"));
        a.round(&mut api);
        let mut again = Bench::new("a");
        again.round(&mut api);
        assert!(again.leads());
        assert_eq!(api.lease.unwrap().spec.unwrap().lease_transitions, Some(0));
    }

    #[test]
    fn a_follower_leaves_a_failing_api_more_and_more_in_peace() {
        let mut a = Bench::new("a");
        let mut wait = || match a.tell(Event::Failed) {
            Action::Wait(wait) => wait.as_secs(),
            action => panic!("{action:?}"),
        };
        assert_eq!([wait(), wait(), wait(), wait(), wait()], [3, 6, 12, 22, 22]);
    }

    /// One candidate's part of a random history.
    #[derive(Clone, Debug)]
    struct Nature {
        /// How fast its clock runs, in percent.
        rate: u64,
        wall_skew: i64,
        /// For each request in turn: how long it travels, how long its answer does, and what else happens.
        luck: Vec<(u64, u64, Fate)>,
    }

    #[derive(Clone, Copy, Debug)]
    enum Fate {
        Works,
        /// Fails before anything is stored.
        Fails,
        /// Is stored, and the answer never comes.
        AnswerLost,
        /// The whole process stands still for this many ms before it sends.
        Stalls(u64),
    }

    fn nature() -> impl Strategy<Value = Nature> {
        let fate = prop_oneof![
            4 => Just(Fate::Works),
            2 => Just(Fate::Fails),
            2 => Just(Fate::AnswerLost),
            1 => (0_u64..30_000).prop_map(Fate::Stalls),
        ];
        // Around the timeout of 5 s is where it gets interesting.
        let delay = || prop_oneof![4 => 0_u64..50, 2 => 4000_u64..5200, 1 => 0_u64..30_000];
        // Trouble comes in runs: a single failure never costs a term.
        let run = ((delay(), delay(), fate), 1_usize..10).prop_map(|(request, times)| vec![request; times]);
        let luck = prop::collection::vec(run, 1..12).prop_map(|runs| runs.concat());
        let rate = prop_oneof![Just(80_u64), Just(115), 80_u64..115];
        (rate, -100_000_i64..100_000, luck).prop_map(|(rate, wall_skew, luck)| Nature { rate, wall_skew, luck })
    }

    /// A candidate as the loop around it drives it, in steps of 10 ms of true time.
    struct Player {
        nature: Nature,
        candidate: Candidate,
        origin: Instant,
        next_luck: usize,
        /// What is awaited: the local time at which it is given up, and the true time at which the answer comes.
        action: Action,
        give_up: Instant,
        arrives: Option<u64>,
        answers: Option<u64>,
        answer: Option<Event>,
        stalled_until: u64,
        /// Writes that were given up but still travel.
        astray: Vec<(u64, Action)>,
    }

    impl Player {
        fn new(identity: &str, nature: Nature) -> Self {
            let origin = Instant::now();
            let mut player = Self {
                nature,
                candidate: Candidate::new(settings(identity)),
                origin,
                next_luck: 0,
                action: Action::Wait(Duration::ZERO),
                give_up: origin,
                arrives: None,
                answers: None,
                answer: None,
                stalled_until: 0,
                astray: Vec::new(),
            };
            player.tell(Event::Woke, 0);
            player
        }

        fn local(&self, time: u64) -> Instant {
            self.origin + Duration::from_millis(time * self.nature.rate / 100)
        }

        fn leads(&self, time: u64) -> bool {
            let now = self.local(time);
            matches!(self.candidate.leadership(now), Leadership::Leading { until, .. } if now < until)
        }

        fn tell(&mut self, event: Event, time: u64) {
            if let Some(arrives) = self.arrives.take() {
                self.astray.push((arrives, self.action.clone()));
            }
            let now = self.local(time);
            let wall = Timestamp::UNIX_EPOCH
                + SignedDuration::from_millis(i64::try_from(time).unwrap() + 1000 * self.nature.wall_skew);
            self.action = self.candidate.step(event, &Moment { now, wall, jitter: 0.3 });
            (self.answers, self.answer) = (None, None);
            if let Action::Wait(wait) = self.action {
                self.give_up = now + wait;
                return;
            }
            let (there, back, fate) = self.nature.luck[self.next_luck % self.nature.luck.len()];
            self.next_luck += 1;
            self.give_up = now + seconds(5);
            match fate {
                Fate::Works => (self.arrives, self.answers) = (Some(time + there), Some(time + there + back)),
                Fate::Fails => {
                    (self.answers, self.answer) = (Some(time + there + back), Some(Event::Failed));
                }
                Fate::AnswerLost => self.arrives = Some(time + there),
                Fate::Stalls(long) => {
                    self.stalled_until = time + long;
                    (self.arrives, self.answers) = (Some(time + long + there), Some(time + long + there + back));
                }
            }
        }

        fn tick(&mut self, time: u64, api: &mut Stored) {
            self.astray.retain(|(arrives, action)| {
                let due = *arrives <= time;
                if due {
                    apply(action, api);
                }
                !due
            });
            if self.arrives.is_some_and(|arrives| arrives <= time) {
                self.arrives = None;
                self.answer = Some(apply(&self.action, api));
            }
            if time < self.stalled_until {
                return;
            }
            let now = self.local(time);
            if self.candidate.leads_until().is_some_and(|until| now >= until) {
                self.tell(Event::Woke, time);
            } else if self.answers.is_some_and(|answers| answers <= time) {
                let event = self.answer.take().unwrap_or(Event::Failed);
                self.tell(event, time);
            } else if now >= self.give_up {
                let event = if matches!(self.action, Action::Wait(_)) { Event::Woke } else { Event::Failed };
                self.tell(event, time);
            }
        }
    }

    fn apply(action: &Action, api: &mut Stored) -> Event {
        match action {
            Action::Wait(_) => Event::Woke,
            Action::Get => Event::Got(api.lease.clone()),
            Action::Create(lease) => api.create(lease).map_or(Event::Conflict, Event::Wrote),
            Action::Replace(lease) => api.replace(lease).map_or(Event::Conflict, Event::Wrote),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Whatever is slow, lost, refused or frozen, and however clocks differ.
        #[test]
        fn two_candidates_never_both_lead(a in nature(), b in nature()) {
            let mut api = Stored::default();
            let (mut a, mut b) = (Player::new("a", a), Player::new("b", b));
            for time in (0..240_000).step_by(10) {
                a.tick(time, &mut api);
                b.tick(time, &mut api);
                prop_assert!(!(a.leads(time) && b.leads(time)), "both lead at {time} ms");
            }
        }

        /// Once everything works again, somebody leads within a lease and two tries.
        #[test]
        fn someone_leads_soon_after_all_is_well(mut a in nature(), mut b in nature()) {
            let mut api = Stored::default();
            (a.rate, b.rate) = (100, 100);
            let (mut a, mut b) = (Player::new("a", a), Player::new("b", b));
            for time in (0..90_000).step_by(10) {
                a.tick(time, &mut api);
                b.tick(time, &mut api);
            }
            for player in [&mut a, &mut b] {
                player.nature.luck = vec![(1, 1, Fate::Works)];
                player.stalled_until = 90_000;
            }
            // The longest back-off, the longest lease with what still travels, and a few tries.
            for time in (90_000..190_000).step_by(10) {
                a.tick(time, &mut api);
                b.tick(time, &mut api);
            }
            prop_assert!(a.leads(189_990) || b.leads(189_990));
        }
    }
}

mod with_a_clock {
    use super::*;

    /// An API that does what the test says.
    #[derive(Clone, Default)]
    struct Fake(Arc<Mutex<State>>);

    #[derive(Default)]
    struct State {
        stored: Stored,
        mood: Mood,
        requests: usize,
    }

    #[derive(Clone, Copy, Default, PartialEq)]
    enum Mood {
        #[default]
        Works,
        Answers500,
        Hangs,
    }

    impl Fake {
        async fn ask<T>(&self, answer: impl FnOnce(&mut Stored) -> Result<T, Trouble>) -> Result<T, Trouble> {
            let mood = {
                let mut state = self.0.lock().unwrap();
                state.requests += 1;
                state.mood
            };
            match mood {
                Mood::Works => answer(&mut self.0.lock().unwrap().stored),
                Mood::Answers500 => {
                    let status = kube::core::Status::failure("etcd is away", "InternalError").with_code(500);
                    Err(kube::Error::Api(status.boxed()).into())
                }
                Mood::Hangs => std::future::pending().await,
            }
        }

        fn set(&self, mood: Mood) {
            self.0.lock().unwrap().mood = mood;
        }

        fn holder(&self) -> Option<String> {
            self.0.lock().unwrap().stored.holder()
        }
    }

    impl Outside for Fake {
        async fn get(&self) -> Result<Option<Lease>, Trouble> {
            self.ask(|stored| Ok(stored.lease.clone())).await
        }

        async fn create(&self, lease: &Lease) -> Result<Lease, Trouble> {
            self.ask(|stored| stored.create(lease)).await
        }

        async fn replace(&self, lease: &Lease) -> Result<Lease, Trouble> {
            self.ask(|stored| stored.replace(lease)).await
        }

        fn wall(&self) -> Timestamp {
            Timestamp::now()
        }
    }

    struct Replica {
        leadership: watch::Receiver<Leadership>,
        shutdown: CancellationToken,
        task: tokio::task::JoinHandle<Result<(), Error>>,
    }

    impl Replica {
        fn start(api: &Fake, identity: &str) -> Self {
            let (sender, leadership) = watch::channel(Leadership::unknown());
            let shutdown = CancellationToken::new();
            let task = tokio::spawn(elect(api.clone(), settings(identity), sender, shutdown.clone()));
            Self { leadership, shutdown, task }
        }

        fn leads(&self) -> bool {
            self.leadership.borrow().is_leading()
        }

        async fn until(&mut self, leads: bool) -> Duration {
            let start = Instant::now();
            let reached = self.leadership.wait_for(|leadership| leadership.is_leading() == leads);
            timeout(seconds(600), reached).await.expect("it comes to that").unwrap();
            start.elapsed()
        }

        async fn stop(self) {
            self.shutdown.cancel();
            self.task.await.unwrap().unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_replicas_one_leads_and_the_other_knows_it() {
        let api = Fake::default();
        let mut a = Replica::start(&api, "a");
        a.until(true).await;
        let mut b = Replica::start(&api, "b");
        b.leadership.changed().await.unwrap();
        assert_eq!(b.leadership.borrow().holder(), Some("a"));
        sleep(seconds(3600)).await;
        assert!(a.leads() && !b.leads());
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_extends_the_term_and_wakes_nobody() {
        let api = Fake::default();
        let mut a = Replica::start(&api, "a");
        a.until(true).await;
        a.leadership.mark_unchanged();
        sleep(seconds(60)).await;
        assert!(a.leads());
        assert!(!a.leadership.has_changed().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_stops_at_the_deadline_when_the_api_answers_500() {
        let api = Fake::default();
        let mut a = Replica::start(&api, "a");
        a.until(true).await;
        api.set(Mood::Answers500);
        let waited = a.until(false).await;
        assert!(waited <= seconds(10), "{waited:?}");
        api.set(Mood::Works);
        a.until(true).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_stops_at_the_deadline_when_the_api_hangs() {
        let api = Fake::default();
        let mut a = Replica::start(&api, "a");
        a.until(true).await;
        api.set(Mood::Hangs);
        let waited = a.until(false).await;
        assert!(waited <= seconds(10), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_outage_costs_no_term() {
        let api = Fake::default();
        let mut a = Replica::start(&api, "a");
        a.until(true).await;
        for mood in [Mood::Hangs, Mood::Answers500] {
            api.set(mood);
            sleep(seconds(4)).await;
            api.set(Mood::Works);
            sleep(seconds(20)).await;
        }
        assert!(a.leads());
        assert_eq!(
            api.0.lock().unwrap().stored.lease.as_ref().unwrap().spec.as_ref().unwrap().lease_transitions,
            Some(0)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn leading_ends_at_the_deadline_even_when_the_renewing_task_is_stuck() {
        let api = Fake::default();
        let mut a = Replica::start(&api, "a");
        a.until(true).await;
        a.task.abort();
        assert!(a.leads());
        sleep(seconds(10)).await;
        assert!(!a.leads());
    }

    #[tokio::test(start_paused = true)]
    async fn another_takes_over_after_a_crash() {
        let api = Fake::default();
        let mut a = Replica::start(&api, "a");
        a.until(true).await;
        let mut b = Replica::start(&api, "b");
        b.leadership.changed().await.unwrap();
        a.task.abort();
        let waited = b.until(true).await;
        assert!((seconds(15)..seconds(20)).contains(&waited), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_releases_and_the_next_try_of_another_takes_it() {
        let api = Fake::default();
        let mut a = Replica::start(&api, "a");
        a.until(true).await;
        let mut b = Replica::start(&api, "b");
        b.leadership.changed().await.unwrap();
        a.stop().await;
        assert_eq!(api.holder(), None);
        let waited = b.until(true).await;
        assert!(waited <= RETRY * 2, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_of_a_follower_touches_nothing() {
        let api = Fake::default();
        let mut a = Replica::start(&api, "a");
        a.until(true).await;
        let mut b = Replica::start(&api, "b");
        b.leadership.changed().await.unwrap();
        let requests = api.0.lock().unwrap().requests;
        b.stop().await;
        assert_eq!(api.0.lock().unwrap().requests, requests);
        assert!(a.leads());
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_ends_in_bounded_time_with_a_hanging_api() {
        let api = Fake::default();
        let mut a = Replica::start(&api, "a");
        a.until(true).await;
        api.set(Mood::Hangs);
        let start = Instant::now();
        a.stop().await;
        assert!(start.elapsed() <= seconds(5));
    }

    #[tokio::test(start_paused = true)]
    async fn who_loses_the_race_for_a_new_lease_follows() {
        let api = Fake::default();
        let mut replicas: Vec<_> = (0..5).map(|n| Replica::start(&api, &format!("replica-{n}"))).collect();
        for replica in &mut replicas {
            replica.leadership.changed().await.unwrap();
        }
        sleep(seconds(60)).await;
        assert_eq!(replicas.iter().filter(|replica| replica.leads()).count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_that_is_away_is_not_asked_in_a_hot_loop() {
        let api = Fake::default();
        api.set(Mood::Answers500);
        let _a = Replica::start(&api, "a");
        sleep(seconds(600)).await;
        let requests = api.0.lock().unwrap().requests;
        assert!((20..60).contains(&requests), "{requests}");
    }
}

mod over_http {
    use axum::http::{Method, Request, StatusCode};
    use kube::client::Body;

    use super::*;

    /// The part of an API server that keeps one Lease.
    fn server(stored: Arc<Mutex<Stored>>) -> Client {
        let answer = move |request: Request<Body>| {
            let stored = stored.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = axum::body::to_bytes(axum::body::Body::new(body), 10_000).await.unwrap();
                let lease = || serde_json::from_slice(&body).unwrap();
                let mut stored = stored.lock().unwrap();
                let path = head.uri.path().strip_prefix("/apis/coordination.k8s.io/v1/namespaces/outrider/leases");
                let answer = match (head.method, path) {
                    (Method::GET, Some("/outrider-operator")) => stored.lease.clone().ok_or(StatusCode::NOT_FOUND),
                    (Method::PUT, Some("/outrider-operator")) if stored.lease.is_none() => Err(StatusCode::NOT_FOUND),
                    (Method::PUT, Some("/outrider-operator")) => {
                        stored.replace(&lease()).map_err(|_| StatusCode::CONFLICT)
                    }
                    (Method::POST, Some("")) => stored.create(&lease()).map_err(|_| StatusCode::CONFLICT),
                    unexpected => panic!("{unexpected:?}"),
                };
                let (status, body) = match answer {
                    Ok(lease) => (StatusCode::OK, serde_json::to_vec(&lease)),
                    Err(status) => {
                        let reason = if status == StatusCode::NOT_FOUND { "NotFound" } else { "Conflict" };
                        let body = kube::core::Status::failure("", reason).with_code(status.as_u16());
                        (status, serde_json::to_vec(&body))
                    }
                };
                let mut response = axum::http::Response::new(Body::from(body.unwrap()));
                *response.status_mut() = status;
                Ok::<_, std::convert::Infallible>(response)
            }
        };
        Client::new(tower::service_fn(answer), "outrider")
    }

    fn start(
        stored: &Arc<Mutex<Stored>>,
        identity: &str,
    ) -> (watch::Receiver<Leadership>, CancellationToken, tokio::task::JoinHandle<Result<(), Error>>) {
        let (sender, leadership) = watch::channel(Leadership::unknown());
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(run(server(stored.clone()), settings(identity), sender, shutdown.clone()));
        (leadership, shutdown, task)
    }

    async fn soon<T, E: std::fmt::Debug>(reached: impl Future<Output = Result<T, E>>) {
        timeout(seconds(600), reached).await.expect("it comes to that").unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn replicas_hand_over_by_the_calls_that_an_api_server_knows() {
        let stored = Arc::default();
        let (mut a, stop, task) = start(&stored, "a");
        soon(a.wait_for(Leadership::is_leading)).await;
        let (mut b, ..) = start(&stored, "b");
        soon(b.wait_for(|leadership| leadership.holder() == Some("a"))).await;
        sleep(seconds(60)).await;
        assert!(a.borrow().is_leading() && !b.borrow().is_leading());
        stop.cancel();
        task.await.unwrap().unwrap();
        soon(b.wait_for(Leadership::is_leading)).await;
        assert_eq!(stored.lock().unwrap().lease.as_ref().unwrap().spec.as_ref().unwrap().lease_transitions, Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_was_removed_is_created_again() {
        let stored = Arc::default();
        let (mut a, ..) = start(&stored, "a");
        soon(a.wait_for(Leadership::is_leading)).await;
        stored.lock().unwrap().lease = None;
        sleep(seconds(5)).await;
        assert_eq!(stored.lock().unwrap().holder().as_deref(), Some("a"));
        assert!(a.borrow().is_leading());
    }
}

#[test]
fn an_identity_carries_the_address_in_both_families() {
    for socket in ["10.0.0.1:10448", "[fd00::1]:10448"] {
        let identity = identity("outrider-operator-0", socket.parse().unwrap());
        assert_eq!(identity, format!("outrider-operator-0_{socket}"));
        assert_eq!(address(&identity), Some(socket.parse().unwrap()));
    }
    assert_eq!(address("somebody"), None);
}

#[test]
fn times_that_let_two_lead_are_refused() {
    let with = |change: fn(&mut Settings)| {
        let mut settings = settings("a");
        change(&mut settings);
        settings.check()
    };
    assert!(with(|_| ()).is_ok());
    assert!(matches!(with(|s| s.lease_duration = s.renew_deadline), Err(Error::Order(_))));
    assert!(matches!(with(|s| s.retry_period = s.renew_deadline), Err(Error::Order(_))));
    assert!(matches!(with(|s| s.lease_duration = Duration::from_millis(15_500)), Err(Error::Duration(_))));
    assert!(matches!(with(|s| s.identity.clear()), Err(Error::NoIdentity)));
}
