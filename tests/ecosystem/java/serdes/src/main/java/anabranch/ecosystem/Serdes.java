package anabranch.ecosystem;

import com.fasterxml.jackson.databind.ObjectMapper;
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import io.apicurio.registry.serde.jsonschema.JsonSchemaKafkaSerializer;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Writes a record with each of Apicurio's serializers, with ids as Confluent's clients have them: SERVER REGISTRY. */
public final class Serdes {
    private static final String ORDER =
            "{\"type\":\"record\",\"name\":\"Order\",\"namespace\":\"java\",\"fields\":[{\"name\":\"id\",\"type\":\"long\"}]}";

    public static void main(String[] args) throws Exception {
        GenericData.Record order = new GenericData.Record(new Schema.Parser().parse(ORDER));
        order.put("id", 1234567890123456789L);
        write(args, "java-avro", new AvroKafkaSerializer<GenericData.Record>(), order);
        String schema = "{\"$schema\":\"http://json-schema.org/draft-07/schema#\",\"required\":[\"id\"]}";
        io.apicurio.registry.rest.client.RegistryClient client =
                io.apicurio.registry.rest.client.RegistryClientFactory.create(args[1]);
        client.createArtifact("default", "java-json-value", "JSON", new java.io.ByteArrayInputStream(schema.getBytes()));
        write(args, "java-json", new JsonSchemaKafkaSerializer<Object>(), new ObjectMapper().readTree("{\"id\":5}"));
    }

    private static <T> void write(String[] args, String topic, Serializer<T> serializer, T value) throws Exception {
        serializer.configure(
                Map.of(
                        "apicurio.registry.url", args[1],
                        "apicurio.registry.auto-register", topic.endsWith("avro"),
                        "apicurio.registry.find-latest", !topic.endsWith("avro"),
                        "apicurio.registry.as-confluent", true,
                        "apicurio.registry.headers.enabled", false,
                        "apicurio.registry.use-id", "contentId"),
                false);
        Map<String, Object> config = Map.of("bootstrap.servers", args[0]);
        try (KafkaProducer<String, T> producer = new KafkaProducer<>(config, new StringSerializer(), serializer)) {
            producer.send(new ProducerRecord<>(topic, "k", value)).get();
        }
    }
}
