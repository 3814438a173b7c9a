import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;

/** Reads records of {@code __consumer_offsets} as a broker does that loads them: a line each, key and value in hex. */
public final class Records {
    public static void main(String[] arguments) throws Exception {
        GroupCoordinatorRecordSerde serde = new GroupCoordinatorRecordSerde();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ");
            ByteBuffer key = ByteBuffer.wrap(HexFormat.of().parseHex(parts[0]));
            ByteBuffer value = ByteBuffer.wrap(HexFormat.of().parseHex(parts[1]));
            CoordinatorRecord record = serde.deserialize(key, value);
            if (key.hasRemaining() || value.hasRemaining()) {
                throw new IllegalStateException("bytes are left of " + record);
            }
            System.out.println(record.key() + " " + record.value().message());
        }
    }
}
