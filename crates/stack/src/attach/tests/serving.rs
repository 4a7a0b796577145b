//! What the fronts of an attachment offer while it runs.

use super::*;
use crate::status::{self, Shown};

#[tokio::test]
async fn each_of_two_fronts_of_one_stack_sees_what_is_written_by_the_other() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let mut config = config(address, directory.path(), Percent::ALL);
    config.fronts.push(fronts::parse("nbd:127.0.0.1:0", &|_| "unused".into()).unwrap());
    let attachment = Attachment::start(config, &paths, pending()).await.unwrap().unwrap();
    let places: Vec<String> = attachment.fronts.places();
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    let using = async move {
        let mut clients = Vec::new();
        for place in &places {
            let (client, driver) = front::NbdClient::connect(&place.parse().unwrap()).await.unwrap();
            tokio::spawn(driver);
            clients.push(client);
        }
        for round in 1..20u8 {
            let (one, other) = (round, round + 100);
            let writes = [(0, one), (1, other)]
                .map(|(index, byte)| clients[index].write(index as u64 * 512, Buffer::copy_of(&[byte; 512]), false));
            let [first, second] = writes;
            let (first, second) = tokio::join!(first, second);
            first.unwrap();
            second.unwrap();
            for (index, client) in clients.iter().enumerate() {
                let read = client.read(0, Buffer::zeroed(1024)).await.unwrap();
                assert_eq!((&read[..512], &read[512..]), (&[one; 512][..], &[other; 512][..]), "front {index}");
            }
        }
        let status = call(&paths.control_socket("disk"), &ControlRequest::Status, |_| {}).await.unwrap();
        assert_eq!(status["fronts"].as_array().unwrap().len(), 2);
        assert_eq!(status["nbd"]["connections_open"], 2, "of both together: {status}");
        let understood = status::read::<Shown>(&status).unwrap().attachment().expect("it is one");
        assert_eq!(understood.fronts.fronts.len(), 2, "who reads it finds what was said");
        ended.send(()).unwrap();
    };
    let ended = async {
        let _ = end.await;
    };
    let (ran, ()) = tokio::join!(attachment.run(ended), using);
    ran.unwrap();
}

#[tokio::test]
async fn an_attachment_that_nobody_can_reach_any_more_ends_with_what_ended_its_front() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let config = config(address, directory.path(), Percent::ALL);
    let mut attachment = Attachment::start(config, &paths, pending()).await.unwrap().unwrap();
    attachment.fronts = Fronts::of(vec![fronts::broken()]);
    let error = attachment.run(pending()).await.unwrap_err().to_string();
    assert!(error.contains("the broken front at nowhere"), "{error}");
}
