package anabranch.tests;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Reads commands as JSON lines from standard input and prints one JSON line for each; members live from one to the next. */
public final class ShareDriver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private final Map<String, KafkaShareConsumer<String, String>> members = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ShareDriver driver = new ShareDriver();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("result", JSON.valueToTree(driver.run(JSON.readTree(line))));
            } catch (Exception error) {
                Throwable cause = error;
                while (cause instanceof ExecutionException && cause.getCause() != null) {
                    cause = cause.getCause();
                }
                answer.put("error", Errors.forException(cause).code());
                answer.put("message", cause.toString());
            }
            out.println(JSON.writeValueAsString(answer));
        }
    }

    private Object run(JsonNode command) throws Exception {
        switch (command.get("op").asText()) {
            case "open":
                return open(command);
            case "read":
                return read(command);
            case "close":
                members.remove(command.get("member").asText()).close();
                return null;
            default:
                Map<String, Object> settings = new HashMap<>();
                settings.put("bootstrap.servers", command.get("bootstrap").asText());
                try (Admin admin = Admin.create(settings)) {
                    return administer(admin, command);
                }
        }
    }

    private Object open(JsonNode command) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", command.get("bootstrap").asText());
        settings.put("group.id", command.get("group").asText());
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("max.poll.records", command.get("records").asInt());
        settings.put("reconnect.backoff.max.ms", 200);
        KafkaShareConsumer<String, String> member =
                new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        member.subscribe(List.of(command.get("topic").asText()));
        members.put(command.get("member").asText(), member);
        return null;
    }

    /** Reads until so many different records are acknowledged: what it got, and what it was told is acknowledged, in order. */
    private List<Object> read(JsonNode command) {
        KafkaShareConsumer<String, String> member = members.get(command.get("member").asText());
        AcknowledgeType kind = AcknowledgeType.valueOf(command.get("kind").asText());
        int count = command.get("count").asInt();
        long until = System.currentTimeMillis() + command.get("patience_ms").asLong();
        Set<String> done = new HashSet<>();
        List<Object> events = new ArrayList<>();
        while (done.size() < count && System.currentTimeMillis() < until) {
            List<ConsumerRecord<String, String>> got = new ArrayList<>();
            member.poll(Duration.ofMillis(200)).forEach(got::add);
            for (ConsumerRecord<String, String> record : got) {
                int deliveries = record.deliveryCount().orElse((short) 0);
                events.add(List.of("got", record.value(), deliveries));
                member.acknowledge(record, kind);
            }
            if (got.isEmpty()) {
                continue;
            }
            Map<TopicIdPartition, Optional<KafkaException>> told = member.commitSync(Duration.ofSeconds(20));
            Set<TopicPartition> well = told.entrySet().stream()
                    .filter(one -> one.getValue().isEmpty())
                    .map(one -> one.getKey().topicPartition())
                    .collect(Collectors.toSet());
            for (ConsumerRecord<String, String> record : got) {
                if (well.contains(new TopicPartition(record.topic(), record.partition()))) {
                    done.add(record.value());
                    events.add(List.of("acknowledged", record.value(), 0));
                }
            }
        }
        return events;
    }

    private Object administer(Admin admin, JsonNode command) throws Exception {
        String group = command.get("group").asText();
        switch (command.get("op").asText()) {
            case "configure":
                ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
                AlterConfigOp change = new AlterConfigOp(
                        new ConfigEntry(command.get("name").asText(), command.get("value").asText()),
                        AlterConfigOp.OpType.SET);
                admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
                return admin.describeConfigs(List.of(resource)).all().get().get(resource)
                        .get(command.get("name").asText()).value();
            case "describe":
                ShareGroupDescription told = admin.describeShareGroups(List.of(group)).all().get().get(group);
                return List.of(told.groupState().toString(), told.members().size());
            case "offsets":
                return admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()))
                        .partitionsToOffsetInfo(group).get().entrySet().stream()
                        .map(one -> List.of(one.getKey().partition(), one.getValue().startOffset()))
                        .collect(Collectors.toList());
            case "alter":
                admin.alterShareGroupOffsets(
                        group,
                        Map.of(new TopicPartition(command.get("topic").asText(), 0), command.get("offset").asLong()))
                        .all().get();
                return null;
            case "forget":
                admin.deleteShareGroupOffsets(group, Set.of(command.get("topic").asText())).all().get();
                return null;
            case "delete":
                admin.deleteShareGroups(List.of(group)).all().get();
                return null;
            default:
                throw new IllegalArgumentException(command.toString());
        }
    }
}
