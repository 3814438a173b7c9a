// Driver of the YDB Rust SDK tests: reads commands as JSON lines from standard input, prints one JSON line for each.
// The writer of this SDK knows no metadata items, and TLS is left to others.
#![recursion_limit = "256"]

use std::collections::HashMap;
use std::error::Error;
use std::io::BufRead;
use std::time::{Duration, SystemTime};

use base64::prelude::{Engine, BASE64_STANDARD};
use serde_json::{json, Value};
use tokio::time::timeout;
use ydb::{
    AlterTopicOptionsBuilder, Client, ClientBuilder, Codec, CodecSelection, ConsumerBuilder, CreateTopicOptionsBuilder,
    DescribeTopicOptionsBuilder, PartitioningStrategy, StaticCredentials, TopicReaderOptions, TopicWriterMessage,
    TopicWriterOptions,
};

const PATIENCE: Duration = Duration::from_secs(40);

type Outcome<T> = Result<T, Box<dyn Error>>;

fn text(command: &Value, name: &str) -> String {
    command[name].as_str().unwrap_or_default().to_string()
}

fn number(command: &Value, name: &str) -> i64 {
    command[name].as_i64().unwrap_or_default()
}

fn texts(command: &Value, name: &str) -> Vec<String> {
    let items = command[name].as_array().cloned().unwrap_or_default();
    items.iter().filter_map(|item| item.as_str().map(str::to_string)).collect()
}

/// One client for each address and user.
async fn client<'a>(clients: &'a mut HashMap<String, Client>, command: &Value) -> Outcome<&'a Client> {
    let (user, password, database) = (text(command, "user"), text(command, "password"), text(command, "database"));
    let url = format!("grpc://{}{database}", text(command, "endpoint"));
    let key = format!("{url}|{user}|{password}");
    if !clients.contains_key(&key) {
        let mut builder = ClientBuilder::new_from_connection_string(url.clone())?;
        if !user.is_empty() {
            let place: http::Uri = url.parse()?;
            builder = builder.with_credentials(StaticCredentials::new(user, password, place, database));
        }
        clients.insert(key.clone(), builder.build().await?);
    }
    Ok(&clients[&key])
}

fn consumer(name: String) -> Outcome<ydb::Consumer> {
    Ok(ConsumerBuilder::default().name(name).build()?)
}

async fn write(client: &Client, command: &Value, messages: Vec<(i64, Vec<u8>)>, at_once: usize) -> Outcome<Value> {
    let partitioning = match command["partition"].as_i64() {
        Some(partition) => PartitioningStrategy::PartitionId(partition),
        None => PartitioningStrategy::ByProducerId,
    };
    let codec = Codec { code: number(command, "codec") as i32 };
    let options = TopicWriterOptions::builder()
        .topic_path(text(command, "path"))
        .producer_id(text(command, "producer"))
        .partitioning(partitioning)
        .auto_seq_no(false)
        .codec_selector(CodecSelection::Fixed(codec))
        .build();
    let writer = client.topic_client().create_writer_with_params(options).await?;
    let mut acks = Vec::new();
    for chunk in messages.chunks(at_once) {
        let mut waiting = Vec::new();
        for (seq, data) in chunk {
            let message = TopicWriterMessage::builder()
                .data(data.clone())
                .seq_no(*seq)
                .created_at(SystemTime::now())
                .build();
            waiting.push((*seq, writer.write_with_ack_future(message).await?));
        }
        for (seq, ack) in waiting {
            // The type of an acknowledgement is not public: it is told apart by how it prints.
            let told = format!("{:?}", ack.await?);
            let offset = told.strip_prefix("Written(MessageWriteInfo { offset: ").and_then(|rest| rest.split(' ').next());
            acks.push(match offset {
                Some(offset) => json!([seq, "written", offset.parse::<i64>()?]),
                None if told.starts_with("Skipped(") => json!([seq, "skipped", -1]),
                None => return Err(format!("acknowledged with {told}").into()),
            });
        }
    }
    writer.stop().await?;
    Ok(Value::Array(acks))
}

async fn read(client: &Client, command: &Value) -> Outcome<Value> {
    let count = number(command, "count") as usize;
    let options = TopicReaderOptions::builder()
        .consumer(text(command, "consumer"))
        .topic(text(command, "path"))
        .build();
    let mut reader = client.topic_client().create_reader_with_params(options).await?;
    let mut found = Vec::new();
    while found.len() < count {
        let batch = reader.read_batch().await?;
        for mut message in batch.messages {
            if found.len() == count {
                break;
            }
            let data = message.read_and_take().await?.unwrap_or_default();
            found.push(json!({
                "partition": message.get_partition_id(),
                "offset": message.offset,
                "seq": message.seq_no,
                "producer": message.get_producer_id(),
                "data": BASE64_STANDARD.encode(data),
                "metadata": {},
            }));
            if command["commit"].as_bool() == Some(true) {
                reader.commit_with_ack(message.get_commit_marker()).await?;
            }
        }
    }
    Ok(Value::Array(found))
}

async fn run(clients: &mut HashMap<String, Client>, command: &Value) -> Outcome<Value> {
    let client = client(clients, command).await?;
    let mut topics = client.topic_client();
    let path = text(command, "path");
    match command["op"].as_str().unwrap_or_default() {
        "create" => {
            let codecs = command["codecs"].as_array().cloned().unwrap_or_default();
            let codecs = codecs.iter().filter_map(Value::as_i64).map(|code| Codec { code: code as i32 });
            let consumers: Outcome<Vec<_>> = texts(command, "consumers").into_iter().map(consumer).collect();
            let options = CreateTopicOptionsBuilder::default()
                .min_active_partitions(number(command, "partitions"))
                .supported_codecs(codecs.collect())
                .consumers(consumers?)
                .build()?;
            topics.create_topic(path, options).await?;
        }
        "add_consumer" => {
            let added = vec![consumer(text(command, "consumer"))?];
            let options = AlterTopicOptionsBuilder::default().add_consumers(added).build()?;
            topics.alter_topic(path, options).await?;
        }
        "describe" => {
            let topic = topics.describe_topic(path, DescribeTopicOptionsBuilder::default().build()?).await?;
            return Ok(json!({
                "partitions": topic.partitions.iter().map(|partition| partition.partition_id).collect::<Vec<_>>(),
                "consumers": topic.consumers.iter().map(|consumer| consumer.name.clone()).collect::<Vec<_>>(),
                "codecs": topic.supported_codecs.iter().map(|codec| codec.code).collect::<Vec<_>>(),
            }));
        }
        "drop" => topics.drop_topic(path).await?,
        "write" => {
            let mut messages = Vec::new();
            for message in command["messages"].as_array().cloned().unwrap_or_default() {
                messages.push((number(&message, "seq"), BASE64_STANDARD.decode(text(&message, "data"))?));
            }
            let at_once = messages.len().max(1);
            return write(client, command, messages, at_once).await;
        }
        "write_many" => {
            let (first, prefix) = (number(command, "first"), text(command, "prefix"));
            let numbers = 0..number(command, "count");
            let messages = numbers.map(|i| (first + i, format!("{prefix}{i}").into_bytes())).collect();
            return write(client, command, messages, 10).await;
        }
        "read" => return read(client, command).await,
        other => return Err(format!("no such command: {other}").into()),
    }
    Ok(Value::Null)
}

#[tokio::main]
async fn main() {
    let mut clients = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let command: Value = serde_json::from_str(&line.expect("a line")).expect("a command");
        let answer = match timeout(PATIENCE, run(&mut clients, &command)).await {
            Ok(Ok(result)) => json!({ "result": result }),
            Ok(Err(error)) => json!({ "error": "YdbError", "message": error.to_string() }),
            Err(_) => json!({ "error": "Timeout", "message": format!("longer than {PATIENCE:?}") }),
        };
        println!("{answer}");
    }
}
