package anabranch.ecosystem;

import java.time.Duration;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.pekko.actor.ActorSystem;
import org.apache.pekko.kafka.ConsumerMessage;
import org.apache.pekko.kafka.ConsumerSettings;
import org.apache.pekko.kafka.ProducerMessage;
import org.apache.pekko.kafka.ProducerSettings;
import org.apache.pekko.kafka.Subscriptions;
import org.apache.pekko.kafka.javadsl.Consumer;
import org.apache.pekko.kafka.javadsl.Transactional;
import org.apache.pekko.stream.RestartSettings;
import org.apache.pekko.stream.javadsl.RestartSource;
import org.apache.pekko.stream.javadsl.Sink;

/** Copies a topic, exactly once, with the transactional source and flow, which begin again when they fail. */
public final class Copy {
    public static void main(String[] arguments) {
        ActorSystem system = ActorSystem.create("ecosystem");
        ConsumerSettings<String, String> consumer =
                ConsumerSettings.create(system, new StringDeserializer(), new StringDeserializer())
                        .withBootstrapServers(arguments[0])
                        .withGroupId("pekko")
                        .withProperty("session.timeout.ms", "6000")
                        .withProperty("heartbeat.interval.ms", "2000")
                        .withProperty("auto.offset.reset", "earliest");
        ProducerSettings<String, String> producer =
                ProducerSettings.create(system, new StringSerializer(), new StringSerializer())
                        .withBootstrapServers(arguments[0]);
        RestartSettings restarts = RestartSettings.create(Duration.ofMillis(200), Duration.ofSeconds(2), 0.1);
        System.out.println("copying");
        RestartSource.onFailuresWithBackoff(restarts, () ->
                        Transactional.source(consumer, Subscriptions.topics("lines"))
                                .map(Copy::copied)
                                .via(Transactional.flow(producer, "pekko-copy")))
                .runWith(Sink.ignore(), system);
    }

    private static ProducerMessage.Envelope<String, String, ConsumerMessage.PartitionOffset> copied(
            ConsumerMessage.TransactionalMessage<String, String> message) {
        return ProducerMessage.single(
                new ProducerRecord<>("copies", message.record().partition(), message.record().key(),
                        message.record().value()),
                message.partitionOffset());
    }
}
