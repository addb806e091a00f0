//! Death and silence of either half: the other one says so in time, and a restart works at once.

#[cfg(test)]
mod tests {
    use crate::scene::{PATIENCE, Process, Scene, TOLD_WITHIN};
    use nix::sys::signal::Signal;

    /// Far more calls than are made before something happens.
    const ENDLESS: u64 = 1_000_000_000;

    /// A server, and a client in the middle of its calls.
    fn running(scene: &Scene) -> (Process, Process) {
        let server = scene.server();
        let client = scene.client(&server, ENDLESS);
        client.line(PATIENCE, |line| line.contains("files done")).expect("the client got to its calls");
        (server, client)
    }

    fn is_unavailable(line: &str) -> bool {
        line.starts_with("demo client: ") && line.contains("Unavailable")
    }

    fn names_the_peer(line: &str) -> bool {
        line.contains("stopped answering")
    }

    fn completes(scene: &Scene, server: &Process) {
        assert_eq!(scene.client(server, 100).end(PATIENCE), Some(Some(0)), "a new client works at once");
    }

    #[test]
    fn a_killed_server_is_reported_and_its_restart_works() {
        let scene = Scene::new(11);
        let (server, mut client) = running(&scene);
        server.signal(Signal::SIGKILL);
        client.line(TOLD_WITHIN, is_unavailable).expect("told in time");
        assert_eq!(client.end(PATIENCE), Some(Some(1)));
        drop((server, client));
        completes(&scene, &scene.server());
    }

    #[test]
    fn a_killed_client_is_reported_and_its_restart_works() {
        let scene = Scene::new(12);
        let (server, client) = running(&scene);
        client.signal(Signal::SIGKILL);
        server.line(TOLD_WITHIN, names_the_peer).expect("told in time");
        drop(client);
        completes(&scene, &server);
    }

    #[test]
    fn deaths_are_reported_without_xrc_too() {
        let scene = Scene::without_xrc(16);
        let (server, mut client) = running(&scene);
        server.signal(Signal::SIGKILL);
        client.line(TOLD_WITHIN, is_unavailable).expect("told in time");
        assert_eq!(client.end(PATIENCE), Some(Some(1)));
        drop((server, client));
        let (server, client) = running(&scene);
        client.signal(Signal::SIGKILL);
        server.line(TOLD_WITHIN, names_the_peer).expect("told in time");
        drop(client);
        completes(&scene, &server);
    }

    #[test]
    fn a_client_restarted_before_its_death_was_noticed_works() {
        let scene = Scene::new(13);
        let (server, client) = running(&scene);
        client.signal(Signal::SIGKILL);
        drop(client);
        completes(&scene, &server);
    }

    #[test]
    fn a_stopped_server_is_reported() {
        let scene = Scene::new(14);
        let (server, mut client) = running(&scene);
        server.signal(Signal::SIGSTOP);
        client.line(TOLD_WITHIN, is_unavailable).expect("told in time");
        assert_eq!(client.end(PATIENCE), Some(Some(1)));
        server.signal(Signal::SIGCONT);
        drop(client);
        completes(&scene, &server);
    }

    #[test]
    fn a_stopped_client_is_reported_and_recovers_or_says_why() {
        let scene = Scene::new(15);
        let (server, mut client) = running(&scene);
        client.signal(Signal::SIGSTOP);
        server.line(TOLD_WITHIN, names_the_peer).expect("told in time");
        client.signal(Signal::SIGCONT);
        // A call that lay at the server is lost and says so; between two calls a new session does.
        let came = client.line(PATIENCE, |line| is_unavailable(line) || line.contains("session up"));
        if is_unavailable(&came.expect("the client learns that its session is over")) {
            assert_eq!(client.end(PATIENCE), Some(Some(1)));
        }
        drop(client);
        completes(&scene, &server);
    }
}
