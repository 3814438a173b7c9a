import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Reads so many records of all topics that it sees, as somebody; prints their topics, and how much it asked for that. */
public final class PatternReader {
    public static void main(String[] arguments) {
        String login = "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"%s\" password=\"%s\";";
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", arguments[0],
                "security.protocol", "SASL_PLAINTEXT",
                "sasl.mechanism", "PLAIN",
                "sasl.jaas.config", String.format(login, arguments[1], arguments[1]),
                "group.id", "g",
                "group.protocol", "consumer",
                "auto.offset.reset", "earliest");
        int wanted = Integer.parseInt(arguments[2]);
        Set<String> topics = new TreeSet<>();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(new SubscriptionPattern(".*"));
            for (long until = System.currentTimeMillis() + 30_000; wanted > 0 && System.currentTimeMillis() < until; ) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    topics.add(record.topic());
                    wanted--;
                }
            }
            List<Object> requests = consumer.metrics().entrySet().stream()
                    .filter(one -> one.getKey().name().equals("request-total")
                            && one.getKey().group().equals("consumer-metrics"))
                    .map(one -> one.getValue().metricValue())
                    .toList();
            System.out.printf("%s %d%n", String.join(",", topics), ((Double) requests.get(0)).longValue());
        }
    }
}
