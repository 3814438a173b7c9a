package anabranch.tests;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import tech.ydb.core.grpc.GrpcTransport;
import tech.ydb.topic.TopicClient;
import tech.ydb.topic.description.Codec;
import tech.ydb.topic.read.SyncReader;
import tech.ydb.topic.settings.ReaderSettings;
import tech.ydb.topic.settings.TopicReadSettings;
import tech.ydb.topic.settings.WriterSettings;
import tech.ydb.topic.write.AsyncWriter;
import tech.ydb.topic.write.Message;

/**
 * Keeps working while nodes end: a writer for each partition, which waits for each acknowledgement, and a reader. Prints
 * the lines of go/load.go. Arguments: ENDPOINT/DATABASE TOPIC NAME CONSUMER PARTITION...
 */
public final class YdbLoad {
    /** What a writer leaves to others between two messages. */
    private static final long PAUSE_MILLIS = 10;

    private final TopicClient client;
    private final String path;
    private volatile boolean over;

    private YdbLoad(TopicClient client, String path) {
        this.client = client;
        this.path = path;
    }

    private interface Work {
        void run() throws Exception;
    }

    private static synchronized void tell(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(line.length() == 0 ? "" : " ").append(word);
        }
        System.out.println(line);
        System.out.flush();
    }

    private static void start(String name, Work work) {
        new Thread(() -> {
            try {
                work.run();
            } catch (Exception failure) {
                tell("failed", name, failure);
            }
        }).start();
    }

    private void write(String name, long partition) throws Exception {
        AsyncWriter writer = client.createAsyncWriter(WriterSettings.newBuilder()
            .setTopicPath(path)
            .setProducerId(name)
            .setPartitionId(partition)
            .setCodec(Codec.RAW)
            .build());
        writer.init().get();
        for (long number = 1; !over; number++) {
            byte[] value = (name + "." + number).getBytes(StandardCharsets.UTF_8);
            writer.send(Message.newBuilder().setData(value).setSeqNo(number).build()).get();
            tell("acked", name, number);
            Thread.sleep(PAUSE_MILLIS);
        }
        writer.shutdown().get();
        tell("over", name);
    }

    private void read(String consumer) throws Exception {
        SyncReader reader = client.createSyncReader(ReaderSettings.newBuilder()
            .setConsumerName(consumer)
            .addTopic(TopicReadSettings.newBuilder().setPath(path).build())
            .build());
        reader.initAndWait();
        while (true) {
            tech.ydb.topic.read.Message message = reader.receive(1, TimeUnit.SECONDS);
            if (message != null) {
                String value = new String(message.getData(), StandardCharsets.UTF_8);
                tell("read", message.getPartitionSession().getPartitionId(), message.getOffset(), value);
                message.commit();
            }
        }
    }

    /** Works until it is killed. */
    public static void main(String[] arguments) throws IOException {
        TopicClient client = TopicClient.newClient(
            GrpcTransport.forConnectionString("grpc://" + arguments[0]).build()).build();
        YdbLoad load = new YdbLoad(client, arguments[1]);
        start("reader", () -> load.read(arguments[3]));
        for (int at = 4; at < arguments.length; at++) {
            String name = arguments[2] + arguments[at];
            long partition = Long.parseLong(arguments[at]);
            start(name, () -> load.write(name, partition));
        }
        while (System.in.read() >= 0) {
            continue;
        }
        load.over = true;
    }
}
